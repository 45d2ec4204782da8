"""Stages in blocks: many jobs, killed ones and repeated ones end with the bytes of one undisturbed process."""

import json
import os
import shutil
import signal
import subprocess
import sys
import weakref
from dataclasses import replace

import numpy as np
import pytest

from ffn.errors import ConfigError, VolumeError
from ffn.geometry import Box
from ffn.io.atomic import write_text
from ffn.io.blocks import WHOLE, Job, forget_blocks, make_files, map_blocks, reduce_blocks, reduce_step
from ffn.io.open import open_volume, read_table
from ffn.io.store import Store
from ffn.io.volume import Placement

from ...jobs import files, job_of
from ...pauses import ROOT, Pause

BOX = Box((3, 0, 0), (67, 64, 300))
PLACEMENT = Placement(BOX, (40.0, 4.0, 4.0), {"stage": "test"}, shard_zyx=(64, 64, 64))
KEY = {"stage": "test", "config": {"factor": 2}}
NUM_BLOCKS = 5


def voxels_of(box):
    return np.arange(box.start[2], box.stop[2], dtype=np.uint16) * np.ones(box.shape, np.uint16)


def count(results):
    return np.concatenate([each["sums"] for each in results])


def run(path, job=WHOLE, key=KEY, done=None):
    """Write a volume in parts that are smaller than a block; note the finished blocks in `done`."""

    def work(block, writers):
        for part in block.blocks((64, 40, 30)):
            writers["0"].write(part, voxels_of(part))
        if done is not None:
            done.append(block.start[2])
        return {"voxels": block.num_voxels, "sums": voxels_of(block).sum(axis=(0, 1, 2), keepdims=True)}

    map_blocks(str(path), {"0": np.uint16}, PLACEMENT, work, key, job, {"sums": count})


@pytest.fixture
def undisturbed(tmp_path):
    """Files of a store that one process wrote."""
    run(tmp_path / "one/v.zarr")
    return files(tmp_path / "one")


@pytest.mark.parametrize("num_jobs", [1, 2, NUM_BLOCKS, 7])
def test_jobs_in_any_order_give_the_bytes_of_one_process(tmp_path, undisturbed, num_jobs):
    path, done = tmp_path / "many/v.zarr", []
    for number in range(num_jobs, 0, -1):
        run(path, job_of(f"{number}-of-{num_jobs}"), done=done)
    with pytest.raises(VolumeError, match="is not finished"):
        open_volume(path).__enter__()
    run(path, done=done)
    assert sorted(done) == [0, 64, 128, 192, 256]
    assert files(tmp_path / "many") == undisturbed


def test_what_was_removed_is_written_again(tmp_path, undisturbed):
    run(tmp_path / "many/v.zarr", job_of("1-of-1"))
    shutil.rmtree(tmp_path / "many/v.zarr")
    run(tmp_path / "many/v.zarr")
    assert files(tmp_path / "many") == undisturbed
    # As after a kill of a second job at the same block.
    run(tmp_path / "many/v.zarr", job_of("1-of-1"))
    next(path for path in (tmp_path / "many/v.zarr/0/c").rglob("*") if path.is_file()).unlink()
    run(tmp_path / "many/v.zarr")
    assert files(tmp_path / "many") == undisturbed


def test_nothing_is_left_of_a_killed_job_that_does_not_come_back(tmp_path, undisturbed):
    run(tmp_path / "many/v.zarr", job_of("1-of-1"))
    (tmp_path / "many/v.zarr/0/zarr.json.12345678.__lock").write_text("{")
    run(tmp_path / "many/v.zarr")
    assert files(tmp_path / "many") == undisturbed


def test_a_shard_that_another_job_writes_at_that_moment_has_a_checksum(tmp_path, undisturbed, monkeypatch):
    path, checksums = tmp_path / "many/v.zarr", Store.checksums

    def removed(store, box):
        monkeypatch.setattr(Store, "checksums", checksums)
        shutil.rmtree(path / "0/c")
        return checksums(store, box)

    monkeypatch.setattr(Store, "checksums", removed)
    run(path)
    assert files(tmp_path / "many") == undisturbed


def test_blocks_of_a_former_key_do_not_count_when_it_comes_back(tmp_path, undisturbed):
    path, other = tmp_path / "many/v.zarr", {**KEY, "revision": 2}
    run(path, job_of("1-of-1"))
    for number in (1, 2):
        map_blocks(
            str(path), {"0": np.uint16}, PLACEMENT, lambda block, out: None, other, job_of(f"{number}-of-2")
        )  # zeros
    run(path)
    assert files(tmp_path / "many") == undisturbed


def test_a_smaller_volume_leaves_nothing_and_writes_nothing_beyond_a_block(tmp_path, undisturbed):
    small = Placement(Box((0, 0, 0), (64, 64, 70)), shard_zyx=(64, 64, 64))
    for path in (tmp_path / "one/v.zarr", tmp_path / "new/v.zarr"):
        map_blocks(str(path), {"0": np.uint8}, small, lambda block, out: None, {}, tables={"sums": np.zeros(1)})
    assert files(tmp_path / "one/v.zarr") == files(tmp_path / "new/v.zarr")

    def work(block, writers):
        writers["0"].write(BOX, voxels_of(BOX))

    with pytest.raises(VolumeError, match="block 3:67,0:64,0:300"):
        map_blocks(f"{tmp_path}/v.zarr", {"0": np.uint16}, PLACEMENT, work, KEY)


def test_tables_are_made_of_one_block_at_a_time(tmp_path):
    alive = []

    def highest(results):
        arrays = []
        for each in results:
            arrays.append(weakref.ref(each["sums"]))
            alive.append(sum(array() is not None for array in arrays))
        return np.array([max(each["sums"].max() for each in results)])

    def work(block, writers):
        return {"sums": np.arange(9)}

    tables = {"highest": highest}
    map_blocks(f"{tmp_path}/v.zarr", {"0": np.uint16}, PLACEMENT, work, KEY, tables=tables, at_end=highest)
    assert read_table(f"{tmp_path}/v.zarr", "highest") == 8
    assert alive == [1] * (2 * NUM_BLOCKS)


SCRIPT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from ffn.io.blocks import Job
from tests.unit.io.test_blocks import run
run(Path(sys.argv[1]), Job.parse(sys.argv[2]) if len(sys.argv) > 2 else Job())
"""


def start(path, *job, pause=None):
    variables = pause.variables() if pause else {}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(path), *job], env={**os.environ, **variables})


@pytest.mark.slow
def test_kills_lose_the_block_in_flight_and_change_nothing(tmp_path, undisturbed):
    path = tmp_path / "killed/v.zarr"
    points = [
        ("ffn.io.store:ShardWriter.finish", 2, True, 1),  # the second block is not written
        ("ffn.io.block_log:JobLog.finish", 1, True, 1),  # it is written, but has no record
        ("ffn.io.block_log:JobLog.finish", 2, False, 3),
        ("ffn.io.store:Store.finish", 1, True, NUM_BLOCKS),
    ]
    for function, calls, before, finished in points:
        pause = Pause("killed", function, calls, before)
        process = start(path, pause=pause)
        pause.wait(process)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        (log,) = (tmp_path / "killed/v.zarr.jobs/write").glob("1-of-1-*.jsonl")
        lines = log.read_text().splitlines()
        assert sum("result" in json.loads(line) for line in lines) == finished
        assert not (path / "zarr.json").exists()
    done = []
    run(path, done=done)
    assert done == []
    assert files(tmp_path / "killed") == undisturbed


def test_two_jobs_at_once_give_the_bytes_of_one(tmp_path, undisturbed):
    path = tmp_path / "two/v.zarr"
    writers = [start(path, f"{number}-of-2") for number in (1, 2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    run(path)
    assert files(tmp_path / "two") == undisturbed


def test_the_record_of_a_share_changes_with_the_key(tmp_path):
    def record_of(share, key=KEY):
        run(tmp_path / "v.zarr", job_of(share, f"{tmp_path}/record.json"), key)
        return (tmp_path / "record.json").read_text()

    first = record_of("1-of-2")
    assert record_of("1-of-2") == first != record_of("1-of-2", {})


def test_a_stage_without_voxels_reduces_blocks(tmp_path):
    blocks, seen, out = list(BOX.blocks((64, 64, 100))), [], f"{tmp_path}/scores.json"

    def work(block):
        seen.append(block)
        return {"voxels": block.num_voxels, "ids": np.arange(3)}

    record = f"{out}.jobs/write/2-of-2.json"
    assert reduce_blocks(out, blocks, work, KEY, job_of("2-of-2", record)) is None
    results = reduce_blocks(out, blocks, work, KEY)
    assert seen == [blocks[1], blocks[2], blocks[0]]
    assert sum(each["voxels"] for each in results) == BOX.num_voxels and results[2]["ids"].tolist() == [0, 1, 2]
    forget_blocks(out)
    assert results[1]["voxels"] == blocks[1].num_voxels, "of jobs of the workflow, so that the last can be repeated"
    os.unlink(record)
    forget_blocks(out)
    assert not list(tmp_path.iterdir())


def steps(path, job, done, **options):
    """Count the voxels of blocks in a step, then do what needs the number; note what is done."""

    def work(block):
        done.append(block.start[2])
        return {"voxels": block.num_voxels}

    def combine(results):
        done.append("tables")
        return {"voxels": np.array([sum(each["voxels"] for each in results)])}

    blocks = list(BOX.blocks((64, 64, 100)))
    made = reduce_step(path, "count", blocks, work, combine, {**KEY, **options}, job_of(job))
    return made and (made.read("voxels").tolist(), made.digest)


def test_a_step_makes_tables_for_what_comes_next(tmp_path):
    out, done = f"{tmp_path}/v.zarr", []
    with pytest.raises(VolumeError, match="--step count"):
        steps(out, "write", done)
    assert [steps(out, job, done) for job in ("count 2-of-2", "count")] == [None, None]
    assert done == [100, 200, 0, "tables"]
    voxels, digest = steps(out, "write", done)
    assert voxels == [BOX.num_voxels] and steps(out, "1-of-2", done) == (voxels, digest)
    assert len(done) == 4, "jobs of what comes next read the tables"
    with pytest.raises(VolumeError, match="--step count"):
        steps(out, "write", done, threshold=2)
    assert steps(f"{tmp_path}/w.zarr", "", done) == (voxels, digest)


def test_tables_that_were_not_finished_are_made_again(tmp_path):
    out, done = f"{tmp_path}/v.zarr", []
    made = steps(out, "", done)
    (tmp_path / "v.zarr.jobs/count/tables.json").write_text("{")
    assert steps(out, "", done) == made and done == [0, 100, 200, "tables", "tables"]


def test_files_that_another_option_made_in_between_are_made_again(tmp_path):
    boxes = list(BOX.blocks((64, 64, 100)))

    def make(option, *jobs):
        for text in jobs:
            job = replace(Job.parse(text), record_path=f"{tmp_path}/{text}.json")
            with make_files(f"{tmp_path}/parts/", ".csv", boxes, {"option": option}, job) as left:
                for box in left:
                    write_text(tmp_path / f"parts/{box.stem}.csv", option)
                    left.finish(box, {})

    make("a", "1-of-2", "2-of-2")
    make("b", "1-of-1")
    assert [path.name for path in tmp_path.glob("*.json")] == ["1-of-1.json"]  # so Snakemake repeats those of a
    make("a", "1-of-2", "2-of-2")
    assert [path.read_text() for path in (tmp_path / "parts").glob("*.csv")] == ["a", "a", "a"]


@pytest.mark.parametrize("text", ["0-of-3", "4-of-3", "1", "1/3", "finish", ""])
def test_a_share_is_a_number_of_a_number(text):
    with pytest.raises(ConfigError, match="--job"):
        Job.parse(text)
