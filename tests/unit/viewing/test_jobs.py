"""An export by several jobs: the same bytes as by one, also if jobs are killed, and nothing is used of other inputs."""

import contextlib
import errno
import itertools

import numpy as np
import pytest

from ffn.errors import ExportError, VolumeError
from ffn.viewing import meshes, mips, ome_zarr, precomputed, shards, skeletons
from ffn.viewing.config import ExportConfig
from ffn.viewing.export import MIPS, STEPS, export
from ffn.viewing.inputs import Sources

from ...jobs import job_of
from ..volumes import write
from .conftest import BOX, SIZE_NM, read_json, segments

FORMATS = ("precomputed", "csv", "ome-zarr", "swc")
CONFIG = ExportConfig(formats=FORMATS, min_mesh_voxels=100, threads=1)
NUM = 3
SHARED = MIPS[:4]  # by several jobs; a volume has no jobs for mips of a single shard


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of everything, and a mip that no jobs share."""
    for module in (mips, precomputed):
        monkeypatch.setattr(module, "CHUNK_ZYX", (8, 8, 8))
    for module in (precomputed, ome_zarr):
        monkeypatch.setattr(module, "SHARD_BYTES", 32 * 8**3 * 8)
    monkeypatch.setattr(meshes, "BLOCK_ZYX", (12, 20, 30))
    monkeypatch.setattr(shards, "SHARD_BYTES", 2000)  # of meshes and skeletons
    monkeypatch.setattr(skeletons, "BLOCK_ZYX", (24, 35, 40))


def jobs(*steps):
    """Return the jobs of the steps, those that share a step in reverse order."""
    for step in steps:
        if step in (*SHARED, "pieces", ""):
            yield from (f"{step} {number}-of-{NUM}".lstrip() for number in range(NUM, 0, -1))
        if step not in MIPS:
            yield step or "write"


def run(sources, out, names):
    for name in names:
        export(sources, out, CONFIG, job=job_of(name, f"{out}/jobs/{name}.json"))


def content(folder):
    """Return what is shown, without what jobs leave for their repetition."""
    kept = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {
        str(name): path.read_bytes()
        for name, path in kept.items()
        if name.parts[0] not in (".work", ".plan.json", "jobs")
    }


@pytest.fixture
def at_once(tmp_path, all_sources):
    export(all_sources, tmp_path / "one", CONFIG)
    return content(tmp_path / "one")


def test_several_jobs_leave_the_bytes_of_one(tmp_path, all_sources, at_once):
    assert not (tmp_path / "one/.work").exists()
    assert len(read_json(tmp_path / "one/segmentation/info")["scales"]) > len(SHARED)
    assert len(list((tmp_path / "one/segmentation/mesh").glob("*.shard"))) > 1
    out = tmp_path / "several"
    *before, last = jobs(*STEPS, "")
    run(all_sources, out, before)
    assert not (out / "neuroglancer.json").exists()
    run(all_sources, out, [last])
    assert content(out) == at_once
    assert not (out / ".work/pieces").exists()
    (out / "neuroglancer.json").unlink()  # as the workflow does before it repeats the last job
    run(all_sources, out, [last])
    assert content(out) == at_once


def test_killed_jobs_lose_the_block_in_flight(tmp_path, all_sources, at_once, monkeypatch):
    """Each function dies once, at its second block, and the job is repeated."""
    out, killed = tmp_path / "killed", set()
    for module, name in (
        (mips, "copy_shard"),
        (mips, "downsample_shard"),
        (meshes, "surfaces_in"),
        (meshes, "write_meshes"),
        (skeletons, "skeletons_in"),
    ):
        real, calls = getattr(module, name), itertools.count(1)

        def dying(*arguments, real=real, calls=calls, name=name, **options):
            if next(calls) == 2:
                killed.add(name)
                raise KeyboardInterrupt
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, dying)
    repeated = 0
    for job in jobs(*STEPS, ""):
        while True:
            try:
                run(all_sources, out, [job])
                break
            except KeyboardInterrupt:
                repeated += 1
    assert repeated == len(killed) == 5
    assert content(out) == at_once


def test_jobs_of_other_inputs_are_refused_until_the_folder_is_prepared_again(tmp_path, all_sources):
    out = tmp_path / "out"
    run(all_sources, out, ["plan", "mip0 1-of-1"])
    write(tmp_path / "seg.h5", (segments() > 0).astype(np.uint16), BOX.start, SIZE_NM)
    with pytest.raises(ExportError, match="out: has no begun export of these inputs.*Run --step plan"):
        run(all_sources, out, ["mip0 1-of-1"])
    run(all_sources, out, ["plan"])
    assert not list(out.rglob("*.shard"))


def test_other_tables_keep_the_blocks(tmp_path, all_sources, at_once):
    run(all_sources, tmp_path / "several", list(jobs(*STEPS, ""))[:-1])
    few = CONFIG.model_copy(update={"num_links": 0})
    export(all_sources, tmp_path / "several", few, job=job_of("write"))
    shown = content(tmp_path / "several")
    voxels = [name for name in at_once if name.startswith(("segmentation/", "image/"))]
    assert voxels and all(shown[name] == at_once[name] for name in voxels)
    assert [name for name in shown if name.startswith("links/")] == ["links/whole.json"]


@pytest.mark.parametrize("job", ["coarse", "pieces 1-of-1", "1-of-1", "write"])
def test_a_job_without_those_before_it_says_so(tmp_path, all_sources, job):
    run(all_sources, tmp_path / "out", ["plan"])
    with pytest.raises(VolumeError, match=r"blocks are not finished.*Run the missing jobs"):
        run(all_sources, tmp_path / "out", [job])


def test_only_the_first_job_creates_volumes(tmp_path, all_sources):
    out = tmp_path / "out"
    run(all_sources, out, ["plan"])
    created = {path: path.stat().st_mtime_ns for name in ("info", "zarr.json") for path in out.rglob(name)}
    assert out / "ome.zarr/labels/segmentation/1/zarr.json" in created
    run(all_sources, out, ["mip0 1-of-1"])
    assert {path: path.stat().st_mtime_ns for name in ("info", "zarr.json") for path in out.rglob(name)} == created
    assert not list(out.rglob("*.__lock"))


def test_a_shard_that_another_job_removed_is_not_finished(tmp_path, all_sources, monkeypatch):
    out = tmp_path / "out"
    run(all_sources, out, ["plan"])
    new_file = mips._new_file

    @contextlib.contextmanager
    def removed(level, shard):
        with new_file(level, shard) as target:
            yield target
        level.file(shard).unlink(missing_ok=True)

    monkeypatch.setattr(mips, "_new_file", removed)
    with pytest.raises(VolumeError, match="is missing after it was written"):
        run(all_sources, out, ["mip0 1-of-1"])


def test_an_export_without_labels_needs_its_mips(tmp_path, all_sources):
    sources, out = Sources(image=all_sources.image), tmp_path / "out"
    run(sources, out, ["plan"])
    with pytest.raises(VolumeError, match="coarse: 1 of 1 blocks are not finished"):
        run(sources, out, ["write"])
    run(sources, out, [f"{mip} 1-of-1" for mip in MIPS] + ["coarse", "write"])
    assert (out / "neuroglancer.json").exists()


def test_a_full_disk_is_one_clear_line(tmp_path, all_sources, monkeypatch):
    out = tmp_path / "out"
    run(all_sources, out, ["plan", *(f"{mip} 1-of-1" for mip in MIPS), "coarse", "pieces 1-of-1"])

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(ExportError, match="out: cannot be written .No space left on device"):
        run(all_sources, out, ["pieces"])
