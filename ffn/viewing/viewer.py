"""Show an export or stores in the Neuroglancer client of the Python package, on loopback only, or take a picture."""

from __future__ import annotations

import contextlib
import html
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import neuroglancer
import neuroglancer.server
import numpy as np
import tornado.web

from ffn.assembly.given import known_corrections
from ffn.errors import ExportError
from ffn.io.atomic import atomic_path
from ffn.io.foreign.chunked import is_reference
from ffn.io.open import open_volume
from ffn.io.store_names import MAIN, split_store
from ffn.io.volume import Volume, voxel_size_of
from ffn.machine.processes import dying_with_parent
from ffn.viewing.asking import asked
from ffn.viewing.config import ViewConfig
from ffn.viewing.corrections import drawn, with_corrections
from ffn.viewing.precomputed import contrast
from ffn.viewing.queue import Queue
from ffn.viewing.segments import read_segment_properties
from ffn.viewing.state import BASE, State, image_layer, load_state, located, make_state, select_segments
from ffn.viewing.trials import TrialInputs

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SNAP = Path("/usr/bin/snap")  # the commands of Snaps are links to it
TIMEOUT_SECONDS = 180.0  # for a large export on a busy machine; a usual picture takes five seconds
POLL_SECONDS = 0.05

# Neuroglancer needs WebGL 2, which without a GPU must be rendered in software. The other flags turn off
# background activity, such as looking for updates.
FLAGS = (
    "--headless=new",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--ignore-gpu-blocklist",
    "--no-sandbox",  # the sandbox does not run as root; the only page that is opened is our own
    "--disable-dev-shm-usage",  # containers often have only 64 MB of /dev/shm
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-proxy-server",
)
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
        raise ExportError(f"{spec}: is not on this machine, expected NAME.zarr. Give its address to Neuroglancer")
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
            # Without a screen, a text browser might take over the terminal.
            if config.open and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
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
        raise ExportError(f"--segments: {unknown[0]} is not in {export}, expected an id of its {len(known)} segments")


def open_viewer(port: int = 0) -> neuroglancer.Viewer:
    """Start Neuroglancer's server on a port of the loopback interface, 0 for a free one, and return a viewer."""
    neuroglancer.set_server_bind_address(bind_port=port)
    try:
        viewer = neuroglancer.Viewer()
        viewer.get_viewer_url()  # starts the server
    except OSError as reason:
        raise ExportError(f"--port: {port} cannot be used ({reason.strerror}). Choose another, or 0 for any") from None
    return viewer


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that the browser is closed too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def page_leading_to(link: str, parent: Path | None = None) -> Iterator[str]:
    """Yield the URL of a file in `parent` that only this user can read and that takes a browser to a secret link.

    Every user of a machine sees the command line of a browser, so the link itself must not be on it.
    """
    with tempfile.TemporaryDirectory(prefix="ffn-view-", dir=parent, ignore_cleanup_errors=True) as folder:
        page = Path(folder, "view.html")
        page.write_text(f'<meta http-equiv="refresh" content="0; url={html.escape(link)}">\n')
        yield page.as_uri()


def find_browser() -> str:
    """Return the path of a browser."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise ExportError("--screenshot: no Chromium found, it is needed. Run: make setup BROWSER=1")
    return browser


def folder_of_files(browser: str) -> Path | None:
    """Return where a browser can read files: None for temporary files, the home for a Snap, which sees nothing else.

    >>> folder_of_files("/snap/bin/chromium") == Path.home()
    True
    """
    resolved = Path(browser).resolve()
    is_snap = resolved == SNAP or any(path.is_relative_to("/snap") for path in (Path(browser), resolved))
    return Path.home() if is_snap else None


def take_screenshot(viewer: neuroglancer.Viewer, size: tuple[int, int], path: Path) -> None:
    """Save a PNG of the viewer, `size` (width, height) pixels, once everything in view is loaded."""
    with viewer.config_state.txn() as config:
        config.show_ui_controls = False
        config.show_panel_borders = False
        config.viewer_size = size
    browser = find_browser()
    with (
        page_leading_to(viewer.get_viewer_url(), folder_of_files(browser)) as page,
        _browser(browser, size, page) as process,
    ):
        picture = _complete_picture(viewer, size, process)
    with atomic_path(path) as temporary:
        temporary.write_bytes(picture)


def _complete_picture(viewer: neuroglancer.Viewer, size: tuple[int, int], process: subprocess.Popen) -> bytes:
    """Request pictures until one has the right size."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        replies: SimpleQueue[Any] = SimpleQueue()
        viewer.async_screenshot(replies.put)
        while replies.empty():
            if process.poll() is not None or time.monotonic() > deadline:
                found = "the browser ended" if process.returncode is not None else "the export may be damaged"
                raise ExportError(f"--screenshot: no complete picture, {found}. Look at it without --screenshot")
            time.sleep(POLL_SECONDS)
        picture = replies.get().screenshot
        if (picture.width, picture.height) == size:
            return picture.image


@contextlib.contextmanager
def _browser(browser: str, size: tuple[int, int], url: str) -> Iterator[subprocess.Popen]:
    """Open `url` in a separate browser with a temporary profile."""
    command = [*dying_with_parent("KILL"), browser]  # no browser is left behind, even after kill -9
    with tempfile.TemporaryDirectory(
        prefix="ffn-browser-", dir=folder_of_files(browser), ignore_cleanup_errors=True
    ) as profile:
        options = [*FLAGS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"]
        process = subprocess.Popen(
            [*command, *options, url],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches only us, and its helper processes can be killed as a group
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
