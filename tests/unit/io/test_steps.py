"""Steps: tables are made of all blocks once, and read by the jobs of the next step."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.blocks import WHOLE, Job
from ffn.io.steps import learn_tables

BLOCKS = list(Box((3, 0, 0), (67, 64, 300)).blocks((64, 64, 100)))
MADE_OF = {"stage": "test", "factor": 2}


def step(path, job=WHOLE, made_of=MADE_OF, factor=2):
    def work(block):
        return {"starts": factor * np.array([block.start])}

    def combine(learnt):
        starts = np.concatenate([each["starts"] for each in learnt])
        return {"starts": starts, "none": starts[:0], "number": np.array([len(starts)])}

    return learn_tables(str(path), "count", BLOCKS, work, combine, made_of, job)


def job(text, record=None):
    return replace(Job.parse(text, ("count",)), record_path=record)


def check(tables):
    assert tables.read("starts").tolist() == [[6, 0, 0], [6, 0, 200], [6, 0, 400]]
    assert tables.read("starts", 1, 2).tolist() == [[6, 0, 200]]
    assert tables.read("none").shape == (0, 3) and tables.read("number").tolist() == [3]


def test_one_process_or_several_jobs_have_the_same_tables(tmp_path):
    whole = step(tmp_path / "one.zarr")
    assert [step(tmp_path / "many.zarr", job(f"count-{part}")) for part in ("2-of-2", "1-of-2", "finish")] == [None] * 3
    many = step(tmp_path / "many.zarr", job("1-of-2"))
    for tables in (whole, many, step(tmp_path / "volume.h5")):
        check(tables)
    assert whole.digest == many.digest


def test_tables_of_other_options_or_unfinished_ones_are_not_read(tmp_path):
    path = tmp_path / "v.zarr"
    step(path)
    with pytest.raises(VolumeError, match="v.zarr/steps/count: has no tables of these .* Run --job count-finish"):
        step(path, job("1-of-2"), {**MADE_OF, "factor": 3})
    (path / "steps/count/tables.json").write_text("{")
    with pytest.raises(VolumeError, match="has no tables of these inputs and options"):
        step(path, job("finish"))
    check(step(path))


def test_tables_that_lost_a_file_are_not_taken_for_empty_ones(tmp_path):
    path = tmp_path / "v.zarr"
    step(path)
    (path / "steps/count/starts/c/0/0").unlink()
    with pytest.raises(VolumeError, match="steps/count/starts: is damaged .* Run --job count-finish again"):
        step(path, job("1-of-2")).read("starts")
    (path / "steps/count/starts/zarr.json").unlink()
    with pytest.raises(VolumeError, match="has no tables of these inputs and options"):
        step(path, job("1-of-2"))
    check(step(path))


def test_the_end_waits_for_all_blocks(tmp_path):
    step(tmp_path / "v.zarr", job("count-1-of-3"))
    with pytest.raises(VolumeError, match="2 of 3 blocks are not finished"):
        step(tmp_path / "v.zarr", job("count-finish"))


def test_the_record_of_the_end_changes_with_the_tables(tmp_path):
    records = []
    for factor in (2, 2, 3):
        path, record = tmp_path / f"{len(records)}.zarr", str(tmp_path / f"{len(records)}.json")
        step(path, job("count-1-of-1"), factor=factor)
        step(path, job("count-finish", record), factor=factor)
        records.append(json.loads((tmp_path / f"{len(records)}.json").read_text())["content"])
    assert records[0] == records[1] != records[2]


def test_several_jobs_cannot_write_one_file(tmp_path):
    with pytest.raises(VolumeError, match="v.h5: cannot be written by several jobs, expected NAME.zarr"):
        step(tmp_path / "v.h5", job("count-1-of-2"))
