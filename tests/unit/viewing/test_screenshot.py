"""Pictures of the viewer; tests/integration takes one."""

import pytest

from ffn.errors import ExportError
from ffn.viewing.redirect import page_leading_to
from ffn.viewing.screenshot import find_browser, folder_of_files


def test_a_missing_browser_is_an_error(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ExportError, match="--screenshot: no Chromium found, it is needed. Run: make setup BROWSER=1"):
        find_browser()


def test_the_first_browser_that_is_installed_is_taken(monkeypatch):
    monkeypatch.setattr("shutil.which", {"chromium-browser": "/a", "google-chrome": "/b"}.get)
    assert find_browser() == "/a"


@pytest.mark.parametrize("target", ["/usr/bin/snap", "/snap/chromium/1/chromium"])
def test_a_snap_gets_files_in_the_home(target, tmp_path, monkeypatch):
    """It sees no other folder for temporary files but its own, and no hidden files."""
    monkeypatch.setenv("HOME", str(tmp_path))
    browser = tmp_path / "chromium"
    browser.symlink_to(target)
    assert folder_of_files(str(browser)) == tmp_path
    with page_leading_to("http://x", folder_of_files(str(browser))) as url:
        (page,) = tmp_path.glob("*/view.html")
        assert url == page.as_uri() and not page.parent.name.startswith(".")


def test_another_browser_gets_temporary_files(tmp_path):
    assert folder_of_files("/usr/bin/chromium-of-a-test") is None
