"""A page that leads to a secret link: every user of a machine sees the command line of a browser."""

from __future__ import annotations

import contextlib
import html
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def page_leading_to(link: str, parent: Path | None = None) -> Iterator[str]:
    """Yield the URL of a file that only this user can read and that takes a browser to `link`.

    Parameters
    ----------
    link : str
        Where the browser shall go.
    parent : Path, optional
        Where to make the file's folder; by default among temporary files.
    """
    with tempfile.TemporaryDirectory(prefix="ffn-view-", dir=parent, ignore_cleanup_errors=True) as folder:
        page = Path(folder, "view.html")
        page.write_text(f'<meta http-equiv="refresh" content="0; url={html.escape(link)}">\n')
        yield page.as_uri()
