import errno
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ffn.io.atomic import SILENT_SECONDS, atomic_path, remove_leftovers, write_json, write_text, write_text_once
from ffn.machine import heartbeat
from ffn.machine.process_id import ProcessId, this_process

PARENT = replace(
    this_process(),
    pid=os.getppid(),
    start=int(Path("/proc", str(os.getppid()), "stat").read_text().rpartition(")")[2].split()[19]),
)
ELSEWHERE = ProcessId("node9", "0e15e000", "4026531836", 5, 678)


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def dead_process():
    """Return the name of a process of this machine that has ended."""
    with subprocess.Popen(["true"]) as process:
        return replace(this_process(), pid=process.pid)


def leave(folder, name, process, seconds_ago=0.0):
    """Write what a process leaves that is killed while it writes `name`; return its path."""
    path = folder / f".{name}.tmp-{process}{os.path.splitext(name)[1]}"
    path.write_text("half of it")
    touched = path.stat().st_mtime - seconds_ago
    os.utime(path, (touched, touched))
    return path


def test_a_file_appears_with_its_folders(tmp_path):
    write_text(tmp_path / "a/b/c.txt", "x")
    assert (tmp_path / "a/b/c.txt").read_text() == "x"
    assert names(tmp_path / "a/b") == ["c.txt"]


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
    dead = dead_process()
    leave(tmp_path, name, dead)
    leave(tmp_path, name, ELSEWHERE, SILENT_SECONDS + 5)
    leave(tmp_path, name, replace(this_process(), start=1))  # its number is ours now
    (tmp_path / name).write_text("x")
    (tmp_path / f".{name}.old-{dead}").mkdir()
    others = [
        leave(tmp_path, name, PARENT, SILENT_SECONDS + 5),
        leave(tmp_path, name, replace(ELSEWHERE, pid=6)),
        leave(tmp_path, f"other-{name}", dead),
    ]
    write_text(tmp_path / name, "y")
    assert names(tmp_path) == sorted([name, *(path.name for path in others)])


def test_a_folder_is_listed_once_however_many_files_are_written(tmp_path, monkeypatch):
    """With the records of a million blocks in it, listing it takes a second."""
    listed, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: listed.append(Path(folder)) or scandir(folder))
    leave(tmp_path, "second", dead_process())
    for name in ("first", "second", "third"):
        write_text(tmp_path / name, "x")
    assert listed == [tmp_path]
    assert names(tmp_path) == ["first", "second", "third"]


def test_a_leftover_of_another_machine_may_become_certain_while_its_successor_writes(tmp_path):
    path = leave(tmp_path, "a.h5", ELSEWHERE)
    with atomic_path(tmp_path / "a.h5") as temporary:
        temporary.write_text("new")
        assert path.exists()
        os.utime(path, (1, 1))
    assert names(tmp_path) == ["a.h5"]


def test_a_writer_touches_its_file_so_that_nobody_takes_it_for_dead(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.0)
    with atomic_path(tmp_path / "a.h5") as temporary:
        temporary.write_text("new")
        os.utime(temporary, (1, 1))
        while temporary.stat().st_mtime == 1:
            pass


def test_the_former_content_stays_until_there_is_a_new_one(tmp_path):
    """A process may be killed after it moved a folder aside, and before it put the new one there."""
    old = tmp_path / f".out.old-{dead_process()}"
    old.mkdir()
    remove_leftovers(tmp_path)
    assert old.exists()
    with pytest.raises(ZeroDivisionError), atomic_path(tmp_path / "out") as temporary:
        raise ZeroDivisionError
    assert old.exists()
    with atomic_path(tmp_path / "out") as temporary:
        temporary.mkdir()
    assert names(tmp_path) == ["out"]


def test_leftovers_are_found_in_all_of_a_folder(tmp_path):
    for folder in ("a", "a/b", ".hidden"):
        (tmp_path / folder).mkdir()
        leave(tmp_path / folder, "x.json", dead_process())
        leave(tmp_path / folder, "y.json", ELSEWHERE, SILENT_SECONDS + 5)
    living = leave(tmp_path / "a", "z.json", ELSEWHERE)
    (tmp_path / "a" / f".folder.tmp-{dead_process()}").mkdir()
    (tmp_path / "a/.x.tmp-of-somebody-else").touch()
    remove_leftovers(tmp_path)
    assert sorted(path for path in tmp_path.rglob("*") if not path.is_dir()) == [
        tmp_path / "a/.x.tmp-of-somebody-else",
        living,
    ]
    assert not list(tmp_path.glob("a/.folder*"))


def test_json_ends_with_a_newline(tmp_path):
    write_json(tmp_path / "a.json", {"b": [1, 2]})
    assert (tmp_path / "a.json").read_text().endswith("}\n")
