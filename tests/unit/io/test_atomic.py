import errno

import pytest

from ffn.errors import UnwritableError
from ffn.io.atomic import atomic_path, this_job, write_text, write_text_once


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_file_that_is_written_once_keeps_its_first_content(tmp_path):
    for text in ("first", "second"):
        write_text_once(tmp_path / "a/b.txt", text)
    assert (tmp_path / "a/b.txt").read_text() == "first"
    assert names(tmp_path / "a") == ["b.txt"]


def test_where_there_are_no_hard_links_a_file_is_written_once_too(tmp_path, monkeypatch):
    def link(source, target):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", link)
    for text in ("first", "second"):
        write_text_once(tmp_path / "b.txt", text)
    assert (tmp_path / "b.txt").read_text() == "first"
    assert names(tmp_path) == ["b.txt"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "old.txt"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), atomic_path(path) as temporary:
        temporary.write_text("half of the n")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert names(tmp_path) == ["old.txt"]


def test_a_folder_replaces_a_full_folder_and_a_file_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content in ("first", "second"):
        with atomic_path(tmp_path / "out") as temporary:
            temporary.mkdir()
            write_text(temporary / f"{content}.txt", content)
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["second.txt"]
    (tmp_path / "results").mkdir()
    write_text(tmp_path / "results/precious.txt", "x")
    for name in (tmp_path / "results", ".", "..", "out/.."):
        with pytest.raises(UnwritableError, match=f"^{name}: "):
            write_text(name, "y")
    assert names(tmp_path) == ["out", "results"]
    assert names(tmp_path / "results") == ["precious.txt"]


@pytest.mark.parametrize("name", ["seg.h5", "precomputed"])
def test_a_retry_overwrites_what_a_killed_process_left(tmp_path, name):
    killed = atomic_path(tmp_path / name)
    temporary = killed.__enter__()  # and never ends
    temporary.mkdir()
    (temporary / "half").touch()
    with atomic_path(tmp_path / name) as temporary:
        assert not temporary.exists()
        temporary.write_text("whole")
    assert names(tmp_path) == [name]


def test_the_former_folder_stays_until_there_is_a_new_one(tmp_path):
    """A process may be killed after it moved a folder aside, and before it put the new one there."""
    old = tmp_path / ".out.old"
    old.mkdir()
    with pytest.raises(ZeroDivisionError), atomic_path(tmp_path / "out") as temporary:
        raise ZeroDivisionError
    assert old.exists()
    with atomic_path(tmp_path / "out") as temporary:
        temporary.mkdir()
    assert names(tmp_path) == ["out"]


def test_several_jobs_may_write_the_same_content_at_once(tmp_path, monkeypatch):
    one = this_job()
    monkeypatch.setattr("sys.argv", ["ffn", "--job", "2-of-2"])
    with atomic_path(tmp_path / "a.json", one) as first, atomic_path(tmp_path / "a.json", this_job()) as second:
        for temporary in (first, second):
            temporary.write_text("same")
    assert names(tmp_path) == ["a.json"]
