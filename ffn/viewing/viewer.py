"""Show an export or stores in the Neuroglancer client of the Python package, without internet, on loopback only."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import neuroglancer
import neuroglancer.server
import numpy as np
import tornado.web

from ffn.assembly.given import known_corrections
from ffn.errors import ExportError
from ffn.io.foreign.chunked import is_reference
from ffn.io.open import open_volume
from ffn.io.store_names import MAIN, split_store
from ffn.io.volume import Volume, voxel_size_of
from ffn.viewing.asking import asked
from ffn.viewing.config import ViewConfig
from ffn.viewing.corrections import drawn, with_corrections
from ffn.viewing.precomputed import contrast
from ffn.viewing.properties import read_segment_properties
from ffn.viewing.queue import Queue
from ffn.viewing.screenshot import page_leading_to, take_screenshot
from ffn.viewing.state import BASE, State, image_layer, load_state, located, make_state, select_segments
from ffn.viewing.trials import TrialInputs

LARGEST_IMAGE_TYPE = 2  # bytes of an integer; wider ones are labels

Announce = Callable[[str], object]  # gets the link once it can be opened
Tool = Callable[[neuroglancer.Viewer, str], contextlib.AbstractContextManager[None]]  # gets also the URL of the folder


def view(
    export: Path,
    config: ViewConfig,
    announce: Announce,
    screenshot: str | Path | None = None,
    queue: Queue | None = None,
    trials: TrialInputs | None = None,
) -> None:
    """Serve an export and show it until interrupted, or save a `screenshot` (PNG) of it.

    Ask the questions of a queue, or take corrections, of which cuts and traces are tried in a run.

    Raises
    ------
    ExportError
        If the export lacks a segment or link, a port is not available, or no picture can be taken.
    """
    state = whole = load_state(export, config.link)
    tool: Tool | None = None
    if queue is not None:
        tool = partial(asked, queue=queue, path=Path(config.queue[0]), whole=whole)
    elif config.corrections is not None:
        path = Path(config.corrections)
        state = with_corrections(state, known_corrections(path))
        tool = partial(drawn, path=path, export=export, inputs=trials)
    if config.segments:
        _require_segments(export, state, config.segments)
        state = select_segments(state, config.segments)
    _show(export, state, config, announce, screenshot, tool)


def view_stores(
    specs: Sequence[str], config: ViewConfig, announce: Announce, screenshot: str | Path | None = None
) -> None:
    """Show stores ``NAME.zarr`` as they are, such as those between the stages; see `view`.

    Raises
    ------
    VolumeError
        If a store cannot be opened.
    ExportError
        If it is not on this machine, the configuration has options of exports, or as in `view`.
    """
    if config.link or config.volume or config.corrections or config.queue:
        names = "--link, --volume, --corrections, --queue"
        raise ExportError(f"{names}: only runs and exports have them, expected none with {specs[0]}")
    folder, state = stores_state(specs, config.segments)
    _show(folder, state, config, announce, screenshot)


def stores_state(specs: Sequence[str], segments: Sequence[int] = ()) -> tuple[Path, State]:
    """Return a folder, and a state that shows the stores in it once the folder is served; the last one is on top."""
    paths = [_path_of(spec) for spec in specs]
    folder = Path(os.path.commonpath([path.parent for path in paths]))
    layers = []
    for spec, path in zip(specs, paths, strict=True):
        with open_volume(spec) as volume:
            layers.append(_store_layer(volume, path.relative_to(folder).as_posix(), segments))
            box, size = volume.box, voxel_size_of(volume)
    return folder, {**make_state(layers, box, size), "showSlices": True}


def _path_of(spec: str) -> Path:
    found = split_store(spec)
    assert found is not None, spec
    store, volume = found
    if "://" in store:
        raise ExportError(
            f"{spec}: is not on this machine, expected NAME.zarr. Give its address to Neuroglancer itself"
        )
    if is_reference(store):
        raise ExportError(
            f"{spec}: refers to an image that stays where it is, expected a store with voxels. Show the whole run, or "
            "bring the image in with copy_image: always"
        )
    path = Path(store).resolve()  # the server leaves its folder neither by links nor by ".."
    return path / ("" if volume == MAIN else volume)


def _store_layer(volume: Volume, path: str, segments: Sequence[int]) -> State:
    name, source = path.replace(".zarr", ""), f"zarr://{BASE}/{path}/"
    if volume.dtype.kind in "iu" and np.dtype(volume.dtype).itemsize > LARGEST_IMAGE_TYPE:
        selected = {"segments": list(map(str, segments)), "selectedAlpha": 0.4}
        return {"type": "segmentation", "name": name, "source": source, **selected}
    return image_layer(name, source, contrast(volume.read, volume.box))


def _show(
    folder: Path,
    state: State,
    config: ViewConfig,
    announce: Announce,
    screenshot: str | Path | None = None,
    tool: Tool | None = None,
) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(_stop_on_signals())
        viewer = open_viewer(config.port)
        base = config.data_url.rstrip("/") if config.data_url else served(folder)
        viewer.set_state(located({**state, "layout": config.layout}, base))
        if tool is not None:
            stack.enter_context(tool(viewer, base))
        if screenshot is not None:
            take_screenshot(viewer, config.size, Path(screenshot))
            return
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is the usual way to end the viewer
            announce(viewer.get_viewer_url())
            if config.open and _has_screen():
                webbrowser.open(stack.enter_context(page_leading_to(viewer.get_viewer_url())))
            threading.Event().wait()


class _Files(tornado.web.StaticFileHandler):
    """Files of a folder, whole or in ranges of bytes."""

    def compute_etag(self) -> None:
        """Leave out the digest of the whole file, which may be a large shard."""


def served(folder: Path) -> str:
    """Let Neuroglancer's own server serve a folder, too; return its secret URL, without a trailing slash.

    Every user of this machine can connect, so the address has a random token. Pages of other sites cannot read it: the
    server sends them no CORS headers.
    """
    server, token = neuroglancer.server.global_server, secrets.token_urlsafe()
    server.app.add_handlers(".*", [(f"/{token}/(.*)", _Files, {"path": str(folder.resolve())})])
    return f"{server.server_url}/{token}"


def _require_segments(export: Path, state: State, segment_ids: tuple[int, ...]) -> None:
    """Check that each segment occurs in a layer that has a selection."""
    folders = {layer["source"]["url"].rpartition("/")[2] for layer in state["layers"] if "segments" in layer}
    known = {segment_id for name in sorted(folders) for segment_id in read_segment_properties(export / name)["id"]}
    unknown = [segment_id for segment_id in segment_ids if segment_id not in known]
    if unknown:
        raise ExportError(
            f"--segments: {unknown[0]} is not in {export}, expected ids of its {len(known)} segments. Is it an old id?"
        )


def open_viewer(port: int = 0) -> neuroglancer.Viewer:
    """Start Neuroglancer's server on a port of the loopback interface, 0 for a free one, and return a viewer."""
    neuroglancer.set_server_bind_address(bind_port=port)
    try:
        viewer = neuroglancer.Viewer()
        viewer.get_viewer_url()  # starts the server
    except OSError as reason:
        raise ExportError(f"--port: {port} cannot be used ({reason.strerror}). Choose another, or 0 for any") from None
    return viewer


def _has_screen() -> bool:
    """Whether there is a screen. Without one, a text browser might take over the terminal."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that the browser is closed too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
