"""Files of boxes: many jobs and killed ones end with what one undisturbed process makes."""

import dataclasses
import json
import shutil

import pytest

from ffn.errors import VolumeError
from ffn.geometry import Box, cut
from ffn.io.blocks import WHOLE, Job
from ffn.io.box_files import make_files
from ffn.io.hdf5 import open_file

BOXES = cut(Box((0, 0, -8), (4, 4, 12)), (4, 4, 4))


def run(folder, job=WHOLE, made_of="image", fails_at=None):
    """Make the files of a job; return the names of those that were made."""
    done = []

    def work(boxes, finished):
        for box in boxes:
            if box == fails_at:
                raise RuntimeError("killed")
            (folder / f"{box.stem}.txt").write_text(f"{made_of} {box}")
            done.append(box)
            finished(box)

    make_files(f"{folder}/", ".txt", BOXES, work, {"image": made_of}, job)
    return done


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


def test_jobs_share_the_files(folder):
    made = [run(folder, Job.parse(f"{number}-of-3")) for number in (3, 1, 2)]
    assert sorted(sum(made, [])) == list(BOXES)
    assert {path.name for path in folder.glob("*.txt")} == {f"{box.stem}.txt" for box in BOXES}
    assert run(folder) == []


def test_a_killed_job_makes_only_what_it_lacks(folder):
    with pytest.raises(RuntimeError, match="killed"):
        run(folder, fails_at=BOXES[3])
    assert run(folder) == list(BOXES)[3:]


def test_what_reads_a_file_that_is_gone_says_how_to_make_it_again(folder):
    job = dataclasses.replace(Job.parse("1-of-1"), record_path=f"{folder}/jobs/1-of-1.json")
    run(folder, job)
    gone, jobs = folder / f"{BOXES[2].stem}.txt", folder / "jobs"
    gone.unlink()
    with pytest.raises(VolumeError, match=f"no such file, expected an HDF5 file. Remove {jobs} and start the workflow"):
        open_file(gone)
    shutil.rmtree(jobs)
    assert run(folder, job) == [BOXES[2]]
    shutil.rmtree(jobs)
    jobs.mkdir()  # of somebody else
    with pytest.raises(VolumeError, match="Did the earlier stage finish"):
        open_file(folder / "other.h5")


def test_files_that_are_gone_damaged_or_of_another_image_are_made_again(folder):
    run(folder)
    (folder / f"{BOXES[1].stem}.txt").unlink()
    (folder / f"{BOXES[2].stem}.txt").write_text("damaged")
    assert run(folder) == BOXES[1:3]
    assert run(folder, made_of="another image") == list(BOXES)


def test_the_record_of_a_job_changes_with_its_files(folder, tmp_path):
    record = tmp_path / "jobs/1-of-2.json"
    job = Job(1, 2, finishes=False, record_path=str(record))
    run(folder, job)
    before = json.loads(record.read_text())
    assert before["blocks"] == 2
    run(folder, job, made_of="another image")
    assert json.loads(record.read_text())["content"] != before["content"]
