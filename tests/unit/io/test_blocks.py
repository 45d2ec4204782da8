"""Blocks: many jobs, killed ones and repeated ones end with the bytes of one undisturbed process."""

import json
import os
import signal
import subprocess
import sys
import weakref
from dataclasses import replace

import numpy as np
import pytest

from ffn.errors import ConfigError, VolumeError
from ffn.geometry import Box
from ffn.io.blocks import WHOLE, Job, forget_blocks, jobs_of, learn_blocks, write_blocks
from ffn.io.open import open_volume, read_table
from ffn.io.shard_writer import ShardWriter
from ffn.io.volume import Placement

from ...jobs import files
from ...pauses import ROOT, Pause

BOX = Box((3, 0, 0), (67, 64, 300))
PLACEMENT = Placement(BOX, (40.0, 4.0, 4.0), {"stage": "test"}, shard_zyx=(64, 64, 64))
MADE_OF = {"stage": "test", "config": {"factor": 2}}
NUM_BLOCKS = 5


def voxels_of(box):
    return np.arange(box.start[2], box.stop[2], dtype=np.uint16) * np.ones(box.shape, np.uint16)


def count(learnt):
    return np.concatenate([each["sums"] for each in learnt])


def run(path, job=WHOLE, made_of=MADE_OF, done=None):
    """Write a volume in parts that are smaller than a block; note the finished blocks in `done`."""

    def work(block, writers):
        for part in block.blocks((64, 40, 30)):
            writers["0"].write(part, voxels_of(part))
        if done is not None:
            done.append(block)
        return {"voxels": block.num_voxels, "sums": voxels_of(block).sum(axis=(0, 1, 2), keepdims=True)}

    write_blocks(str(path), {"0": np.uint16}, PLACEMENT, work, made_of, job, {"sums": count})


@pytest.fixture
def undisturbed(tmp_path):
    """Files of a store that one process wrote."""
    run(tmp_path / "one" / "v.zarr")
    return files(tmp_path / "one/v.zarr")


def test_one_process_writes_voxels_tables_and_records(tmp_path, undisturbed):
    path = tmp_path / "one/v.zarr"
    with open_volume(path) as volume:
        assert (volume.box, volume.provenance) == (BOX, {"stage": "test"})
        np.testing.assert_array_equal(volume.read(), voxels_of(BOX))
    assert read_table(path, "sums").sum() == voxels_of(BOX).sum()
    assert len([name for name in undisturbed if name.startswith("blocks/") and name.endswith(".json")]) == NUM_BLOCKS


def test_an_hdf5_file_gets_the_same_voxels_and_tables(tmp_path):
    path = tmp_path / "v.h5"
    for _ in range(2):
        run(path)
    with open_volume(f"{path}:0") as volume:
        np.testing.assert_array_equal(volume.read(), voxels_of(BOX))
    assert read_table(f"{path}:0", "sums").sum() == voxels_of(BOX).sum()
    with pytest.raises(VolumeError, match="cannot be written by several jobs, expected NAME.zarr"):
        run(path, Job.parse("1-of-2"))


@pytest.mark.parametrize("num_jobs", [1, 2, NUM_BLOCKS, 7])
def test_jobs_in_any_order_give_the_bytes_of_one_process(tmp_path, undisturbed, num_jobs):
    path = tmp_path / "many/v.zarr"
    for number in range(num_jobs, 0, -1):
        run(path, Job.parse(f"{number}-of-{num_jobs}"))
    with pytest.raises(VolumeError, match="is not finished"):
        open_volume(path).__enter__()
    run(path, Job.parse("finish"))
    assert files(path) == undisturbed


def test_finished_blocks_are_skipped_and_others_made_again(tmp_path, undisturbed):
    path, done = tmp_path / "one/v.zarr", []
    run(path, done=done)
    assert done == []
    (path / "0/c/0/0/1").write_bytes(b"damaged")
    (path / "0/c/0/0/2").unlink()
    (path / "blocks/z000003-y000000-x000192.json").write_text("{")
    (path / "blocks/z000003-y000000-x000256.npz").unlink()
    run(path, done=done)
    assert [block.start[2] for block in done] == [64, 128, 192, 256]
    assert files(path) == undisturbed


def test_blocks_made_of_something_else_do_not_count(tmp_path, undisturbed):
    path, done = tmp_path / "one/v.zarr", []
    other = {**MADE_OF, "config": {"factor": 3}}
    run(path, Job.parse("1-of-5"), other, done)
    with pytest.raises(VolumeError, match="4 of 5 blocks are not finished, such as 3:67,0:64,64:128, expected all"):
        run(path, Job.parse("finish"), other)
    run(path, done=done)
    assert len(done) == 2, "the block of the other configuration is made again"
    assert files(path) == undisturbed


def test_a_smaller_volume_leaves_nothing_of_a_larger_one(tmp_path, undisturbed):
    small = Placement(Box((0, 0, 0), (64, 64, 70)), shard_zyx=(64, 64, 64))
    for path in (tmp_path / "one/v.zarr", tmp_path / "new/v.zarr"):
        write_blocks(str(path), {"0": np.uint8}, small, lambda block, out: None, {}, tables={"sums": np.zeros(1)})
    assert files(tmp_path / "one/v.zarr") == files(tmp_path / "new/v.zarr")


def test_tables_are_made_of_one_block_at_a_time(tmp_path):
    alive = []

    def highest(learnt):
        arrays = []
        for each in learnt:
            arrays.append(weakref.ref(each["sums"]))
            alive.append(sum(array() is not None for array in arrays))
        return np.array([max(each["sums"].max() for each in learnt)])

    def work(block, writers):
        return {"sums": np.arange(block.num_voxels)}

    tables = {"highest": highest}
    write_blocks(f"{tmp_path}/v.zarr", {"0": np.uint16}, PLACEMENT, work, MADE_OF, tables=tables, at_end=highest)
    assert read_table(f"{tmp_path}/v.zarr", "highest") == 64**3 - 1
    assert alive == [1] * (2 * NUM_BLOCKS)


def test_writing_beyond_the_block_is_an_error(tmp_path):
    def work(block, writers):
        writers["0"].write(BOX, voxels_of(BOX))

    with pytest.raises(VolumeError, match="block 3:67,0:64,0:300 is not inside of 3:67,0:64,0:64, the shards of this"):
        write_blocks(f"{tmp_path}/v.zarr", {"0": np.uint16}, PLACEMENT, work, MADE_OF)


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


def test_kills_lose_the_block_in_flight_and_change_nothing(tmp_path, undisturbed):
    path = tmp_path / "killed/v.zarr"
    points = [
        ("ffn.io.shard_writer:ShardWriter.finish", 2, True, 1),  # the second block is not written
        ("ffn.io.block_records:BlockRecords.write", 1, True, 1),  # it is written, but has no record
        ("ffn.io.block_records:BlockRecords.write", 2, False, 3),
        ("ffn.io.store:Store.finish", 1, True, NUM_BLOCKS),
    ]
    for function, calls, before, finished in points:
        pause = Pause("killed", function, calls, before)
        process = start(path, pause=pause)
        pause.wait(process)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert len(list((path / "blocks").glob("z*.json"))) == finished
        assert not (path / "zarr.json").exists()
    done = []
    run(path, done=done)
    assert done == []
    assert files(path) == undisturbed


def test_a_part_leaves_a_file_that_changes_with_its_blocks(tmp_path):
    def record_of(*words, **options):
        job = replace(Job.parse(*words), record_path=f"{tmp_path}/v.zarr/jobs/record.json")
        run(tmp_path / "v.zarr", job, **options)
        return (tmp_path / "v.zarr/jobs/record.json").read_text()

    first = record_of("1-of-2")
    assert '"blocks": 2' in first
    assert record_of("1-of-2") == first != record_of("2-of-2")
    assert record_of("1-of-2", made_of={}) != first


def test_two_writers_at_once_give_the_bytes_of_one(tmp_path, undisturbed):
    path = tmp_path / "two/v.zarr"
    writers = [start(path, f"{number}-of-2") for number in (1, 2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    run(path, Job.parse("finish"))
    assert files(path) == undisturbed


def test_a_block_without_its_file_is_not_finished(tmp_path, undisturbed, monkeypatch):
    """Another writer removes a shard, to write it again, and is killed."""
    path, shard, record = tmp_path / "v.zarr", "0/c/0/0/1", "blocks/z000003-y000000-x000064.json"
    finish, done = ShardWriter.finish, []

    def disturbed(writer):
        finish(writer)
        (path / shard).unlink(missing_ok=True)

    monkeypatch.setattr(ShardWriter, "finish", disturbed)
    with pytest.raises(VolumeError, match=f"{shard} has gone since it was written.* Run the job again"):
        run(path)
    monkeypatch.undo()
    run(path)
    content = json.loads(undisturbed[record])
    (path / record).write_text(json.dumps(content | {"shards": {shard: None}}))  # as it was written once
    (path / shard).unlink()
    with pytest.raises(
        VolumeError, match=f"1 of 5 shards are gone, such as {shard}, expected all. Run their jobs again"
    ):
        run(path, Job.parse("finish"))
    run(path, done=done)
    assert [block.start[2] for block in done] == [64]
    assert files(path) == undisturbed


def test_a_stage_without_voxels_learns_from_blocks(tmp_path):
    blocks, seen = list(BOX.blocks((64, 64, 100))), []

    def work(block):
        seen.append(block)
        return {"voxels": block.num_voxels, "ids": np.arange(3)}

    folder = f"{tmp_path}/scores.blocks"
    assert learn_blocks(folder, blocks, work, MADE_OF, Job.parse("2-of-2")) == []
    learnt = learn_blocks(folder, blocks, work, MADE_OF)
    assert seen == [blocks[1], blocks[2], blocks[0]]
    assert sum(each["voxels"] for each in learnt) == BOX.num_voxels
    assert learnt[2]["ids"].tolist() == [0, 1, 2]
    assert files(tmp_path / "scores.blocks")
    forget_blocks(folder, Job.parse("finish"))
    assert learnt[1]["voxels"] == blocks[1].num_voxels, "what several jobs learnt can be read again"
    forget_blocks(folder)
    assert not list(tmp_path.iterdir())
    assert learn_blocks(folder, blocks[:1], work, MADE_OF)[0]["voxels"] == blocks[0].num_voxels
    assert not list(tmp_path.iterdir()), "a single block of a single process has no record"


def test_records_of_an_earlier_box_go_and_damaged_ones_are_named(tmp_path):
    def learn(blocks, job):
        return learn_blocks(f"{folder}", blocks, lambda block: {"ids": np.arange(3)}, MADE_OF, job)

    folder, blocks = tmp_path / "scores.blocks", list(BOX.blocks((64, 64, 100)))
    learn(blocks, Job.parse("1-of-1"))
    learn(blocks[:2], Job.parse("1-of-1"))
    learnt = learn(blocks[:2], Job.parse("finish"))
    assert sorted({path.stem for path in folder.iterdir()}) == [block.stem for block in blocks[:2]]
    (folder / f"{blocks[1].stem}.npz").write_bytes(b"damaged")
    with pytest.raises(VolumeError, match="1 of 2 blocks are not finished, such as 3:67,0:64,100:200, expected all"):
        list(learnt)


def test_blocks_are_grouped_into_jobs():
    blocks = list(range(10_007))
    jobs = [Job.parse(text) for text in jobs_of(len(blocks), 1000)]
    assert [block for job in jobs for block in job.part_of(blocks)] == blocks
    assert {len(job.part_of(blocks)) for job in jobs} == {10, 11}
    assert jobs_of(0, 1000) == ["1-of-1"]


@pytest.mark.parametrize("text", ["0-of-3", "4-of-3", "1", "1/3", ""])
def test_a_job_is_a_number_of_a_number(text):
    with pytest.raises(ConfigError, match="expected NUMBER-of-NUMBER, as in 3-of-1000, or finish"):
        Job.parse(text)
