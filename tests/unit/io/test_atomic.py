import os
import subprocess

import pytest

from ffn.io.atomic import _HOST, atomic_path, write_json, write_text


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def dead_pid():
    """Return the number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        return process.pid


def test_a_file_appears_with_its_folders(tmp_path):
    write_text(tmp_path / "a/b/c.txt", "x")
    assert (tmp_path / "a/b/c.txt").read_text() == "x"
    assert names(tmp_path / "a/b") == ["c.txt"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "old.txt"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), atomic_path(path) as temporary:
        temporary.write_text("half of the n")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert names(tmp_path) == ["old.txt"]


def test_the_target_is_untouched_until_the_block_ends(tmp_path):
    path = tmp_path / "a.h5"
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        assert temporary.parent == path.parent and temporary.suffix == ".h5"
        assert not path.exists()
    assert path.read_text() == "new"


def test_a_folder_replaces_a_full_folder(tmp_path):
    for content in ("first", "second"):
        with atomic_path(tmp_path / "out") as temporary:
            temporary.mkdir()
            write_text(temporary / f"{content}.txt", content)
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["second.txt"]


def test_a_file_never_replaces_a_folder(tmp_path):
    (tmp_path / "results").mkdir()
    write_text(tmp_path / "results/precious.txt", "x")
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path / "results", "y")
    assert names(tmp_path) == ["results"]
    assert names(tmp_path / "results") == ["precious.txt"]


@pytest.mark.parametrize("name", ["seg.h5", "precomputed", "weird[1]*.h5"])
def test_leftovers_of_killed_processes_are_removed(tmp_path, name):
    suffix = os.path.splitext(name)[1]
    dead, alive = dead_pid(), os.getppid()
    (tmp_path / f".{name}.tmp-{_HOST}-{dead}{suffix}").write_text("orphan")
    (tmp_path / f".{name}.old-{_HOST}-{dead}").mkdir()
    others = {
        f".{name}.tmp-{_HOST}-{alive}{suffix}",
        f".{name}.tmp-elsewhere-{dead}{suffix}",
        f".other.tmp-{_HOST}-{dead}",
    }
    for other in others:
        (tmp_path / other).write_text("not ours")
    write_text(tmp_path / name, "x")
    assert set(names(tmp_path)) == {name, *others}


def test_json_ends_with_a_newline(tmp_path):
    write_json(tmp_path / "a.json", {"b": [1, 2]})
    assert (tmp_path / "a.json").read_text().endswith("}\n")
