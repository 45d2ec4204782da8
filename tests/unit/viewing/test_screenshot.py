"""Pictures of the viewer; tests/integration takes one."""

import pytest

from ffn.errors import ExportError
from ffn.viewing.screenshot import find_browser


def test_a_missing_browser_is_an_error(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ExportError, match="--screenshot: no Chromium found, it is needed. Run: make setup BROWSER=1"):
        find_browser()


def test_the_first_browser_that_is_installed_is_taken(monkeypatch):
    monkeypatch.setattr("shutil.which", {"chromium-browser": "/a", "google-chrome": "/b"}.get)
    assert find_browser() == "/a"
