"""Show an export or stores in the Neuroglancer client of the Python package, without internet, on loopback only."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import neuroglancer

from ffn.errors import ExportError
from ffn.viewing.config import ViewConfig
from ffn.viewing.corrections import kept, known_corrections, places_in, with_corrections
from ffn.viewing.properties import read_segment_ids
from ffn.viewing.redirect import page_leading_to
from ffn.viewing.server import HOST, port_error, serve
from ffn.viewing.state import State, load_state, located, select_segments
from ffn.viewing.stores import stores_state


def view(
    export: Path,
    config: ViewConfig,
    announce: Callable[[str], object],
    screenshot: str | Path | None = None,
) -> None:
    """Serve an export and show it until interrupted, or take a picture of it.

    Parameters
    ----------
    export : Path
        Folder written by ``ffn export``.
    config : ViewConfig
        What to show, and where to serve it.
    announce : callable
        Called with the link once it can be opened.
    screenshot : path, optional
        PNG file to write instead of waiting for an interrupt.

    Raises
    ------
    ExportError
        If the export lacks a segment or link, a port is not available, or no picture can be taken.
    """
    _show(export, _state(export, config), config, announce, screenshot)


def view_stores(
    specs: Sequence[str],
    config: ViewConfig,
    announce: Callable[[str], object],
    screenshot: str | Path | None = None,
) -> None:
    """Show stores ``NAME.zarr`` as they are, such as those between the stages; see `view`.

    Raises
    ------
    VolumeError
        If a store cannot be opened.
    ExportError
        If it is not on this machine, the configuration asks for what only an export has, or as in `view`.
    """
    if config.link or config.volume or config.corrections:
        names = "--link, --volume, --corrections"
        raise ExportError(f"{names}: only runs and exports have them, expected none with {specs[0]}")
    folder, state = stores_state(specs, config.segments)
    _show(folder, {**state, "layout": config.layout}, config, announce, screenshot)


def _show(
    folder: Path,
    state: State,
    config: ViewConfig,
    announce: Callable[[str], object],
    screenshot: str | Path | None,
) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(_stop_on_signals())
        viewer = _open_viewer(config.port)
        base = stack.enter_context(_served(folder, config, viewer))
        viewer.set_state(located(state, base))
        if config.corrections is not None:
            stack.enter_context(kept(viewer, Path(config.corrections), stack.enter_context(places_in(folder))))
        if screenshot is not None:
            from ffn.viewing.screenshot import take_screenshot

            take_screenshot(viewer, config.size, Path(screenshot))
            return
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is the usual way to end the viewer
            announce(viewer.get_viewer_url())
            if config.open and _has_screen():
                webbrowser.open(stack.enter_context(page_leading_to(viewer.get_viewer_url())))
            threading.Event().wait()


def _served(folder: Path, config: ViewConfig, viewer: neuroglancer.Viewer) -> contextlib.AbstractContextManager[str]:
    """Serve the folder to the viewer unless another server does; return its URL."""
    if config.data_url is not None:
        return contextlib.nullcontext(config.data_url.rstrip("/"))
    return serve(folder, config.port + 1 if config.port else 0, urlsplit(viewer.get_viewer_url()).port)


def _state(export: Path, config: ViewConfig) -> State:
    state = {**load_state(export, config.link), "layout": config.layout}
    if config.corrections is not None:
        state = with_corrections(state, known_corrections(Path(config.corrections)))
    if config.segments:
        _require_segments(export, state, config.segments)
        return select_segments(state, config.segments)
    return state


def _require_segments(export: Path, state: State, segment_ids: tuple[int, ...]) -> None:
    """Check that each segment occurs in a layer that has a selection."""
    folders = {layer["source"]["url"].rpartition("/")[2] for layer in state["layers"] if "segments" in layer}
    known = {segment_id for name in sorted(folders) for segment_id in read_segment_ids(export / name)}
    unknown = [segment_id for segment_id in segment_ids if segment_id not in known]
    if unknown:
        raise ExportError(
            f"--segments: {unknown[0]} is not in {export}, expected ids of its {len(known)} segments. Is it an old id?"
        )


def _open_viewer(port: int) -> neuroglancer.Viewer:
    neuroglancer.set_server_bind_address(HOST, port)
    try:
        viewer = neuroglancer.Viewer()
        viewer.get_viewer_url()  # starts its server
    except OSError as reason:
        raise port_error(port, reason) from None
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
