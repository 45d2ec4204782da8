"""Render a Neuroglancer viewer without a screen, in headless Chromium."""

from __future__ import annotations

import contextlib
import html
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffn.errors import ExportError
from ffn.io.atomic import atomic_path
from ffn.machine.processes import dying_with_parent

if TYPE_CHECKING:
    import neuroglancer

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
        replies: queue.Queue[Any] = queue.Queue()
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
