"""The way of a browser to a secret link."""

import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ffn.viewing.redirect import page_leading_to


def test_only_the_user_can_read_the_link_and_only_for_a_while():
    with page_leading_to("http://127.0.0.1:8000/v/secret/?a=1&b=2") as url:
        page = Path(unquote(urlsplit(url).path))
        assert url.startswith("file:///") and "secret" not in url
        assert "url=http://127.0.0.1:8000/v/secret/?a=1&amp;b=2" in page.read_text()
        assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
    assert not page.parent.exists()
