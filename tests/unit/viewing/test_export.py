"""The content of an export folder, by one process or several jobs, killed or not; and what is refused."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from ffn.errors import ExportError, UnwritableError, VolumeError
from ffn.geometry import Box
from ffn.io import hdf5
from ffn.io.blocks import Job
from ffn.io.store_names import LAST
from ffn.viewing import MIPS, meshes, precomputed, shards, skeletons
from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export
from ffn.viewing.inputs import Sources, read_groups
from ffn.viewing.state import load_state, located

from ..volumes import read, read_scale, write
from .conftest import BOX, SIZE_NM, read_json, segments, two_tubes, write_all


def test_an_export_has_every_volume_at_its_place(tmp_path, sources, cloud_volume):
    export(sources, tmp_path / "out", ExportConfig())
    volume = cloud_volume(f"file://{tmp_path}/out/segmentation", progress=False, fill_missing=True)
    assert np.array_equal(volume[:][..., 0].T, two_tubes())
    assert volume.voxel_offset.tolist() == [300, -10, 20] and volume.resolution.tolist() == [10, 8, 20]
    # The tube 9 ends at x 390, y 10 and z 32; mip 1 voxels are 20 nm on all axes.
    vertices = volume.mesh.get(9)[9].vertices
    assert np.abs(vertices.max(0) - [3900, 80, 640]).max() <= 20
    assert np.abs(vertices.min(0) - [3000, 0, 520]).max() <= 20
    truth = cloud_volume(f"file://{tmp_path}/out/truth", progress=False)
    assert truth.shape == (90, 70, 10, 1)
    names = "image links neuroglancer.json provenance.json segmentation segmentation.csv truth truth.csv".split()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    state = located(load_state(tmp_path / "out"), "http://127.0.0.1:1")
    image, segmentation, skeletons, truth = state["layers"]
    assert image["source"] == "precomputed://http://127.0.0.1:1/image"
    assert image["shaderControls"]["normalized"]["range"] == [100, 200]
    assert segmentation["segments"] == ["9", "4"], "the speck has no mesh"
    assert state["position"] == [345, 25, 32]
    assert state["dimensions"] == {"x": [10e-9, "m"], "y": [8e-9, "m"], "z": [20e-9, "m"]}


def test_a_box_crops_all_volumes_in_threads_and_the_folder_may_be_above(tmp_path, sources, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    config = ExportConfig(image_encoding="png", threads=2)
    export(sources, "../out", config, Box((25, 0, 310), (100, 12, 350)))
    assert np.array_equal(read_scale(tmp_path / "out/segmentation", 0), two_tubes()[5:, 10:22, 10:50])
    assert read_scale(tmp_path / "out/truth", 0).shape == (5, 12, 40)
    assert read_json(tmp_path / "out/provenance.json")["inputs"]["box"] == "25:44,0:12,310:350"


def test_empty_segmentations_and_voxel_sizes_of_others_are_exported(tmp_path, sources):
    empty = write(tmp_path / "empty.h5", np.zeros(BOX.shape, np.uint8), BOX.start, SIZE_NM)
    export(Sources(segmentation=empty), tmp_path / "out", ExportConfig())
    assert read_json(tmp_path / "out/segmentation/segment_properties/info")["inline"]["ids"] == []
    assert load_state(tmp_path / "out")["layers"][0]["segments"] == []
    assert not read(tmp_path / "out/segmentation").any()
    with hdf5.create_file(tmp_path / "foreign.h5") as file:
        file.create_dataset("stack", data=np.ones((4, 5, 6), np.uint16))
    foreign = f"{tmp_path}/foreign.h5:stack"
    export(Sources(image=sources.image, truth=foreign), tmp_path / "out", ExportConfig())
    assert read_json(tmp_path / "out/truth/info")["scales"][0]["resolution"] == [10, 8, 20]
    with pytest.raises(ExportError, match="foreign.h5:stack: .*voxel size"):
        export(Sources(truth=foreign), tmp_path / "other", ExportConfig())


def test_voxel_sizes_may_be_rounded_otherwise_and_negative_ids_are_background(tmp_path):
    """0.0098 µm is not quite 9.8 nm."""
    size = (20.0, 0.0098 * 1e3, 9.8)
    assert size[1] != 9.8
    image = write(tmp_path / "image.h5", np.ones(BOX.shape, np.uint8), BOX.start, size)
    signed = np.where(two_tubes() == 0, -1, two_tubes().astype(np.int32))
    labels = write(tmp_path / "labels.h5", signed, BOX.start, (20.0, 9.8, 9.8))
    export(Sources(image=image, segmentation=labels), tmp_path / "out", ExportConfig())
    assert read_json(tmp_path / "out/segmentation/info")["scales"][0]["resolution"] == [9.8, size[1], 20]
    assert np.array_equal(read_scale(tmp_path / "out/segmentation", 0), two_tubes())


def test_bad_volumes_leave_nothing(tmp_path, sources):
    floats = write(tmp_path / "float.h5", np.full(BOX.shape, 0.5, np.float32), BOX.start, SIZE_NM)
    other = write(tmp_path / "other.h5", two_tubes(), BOX.start, (8.0, 8.0, 8.0))
    cases = [
        (Sources(), None, "no volume is given"),
        (Sources(image=floats), None, "float.h5:float: has type float32"),
        (Sources(image=sources.image, segmentation=other), None, "other.h5:other: "),
        (sources, Box((35, 0, 300), (40, 9, 350)), "truth.h5:truth: covers .* --box 35:40,0:9"),
    ]
    for bad, box, message in cases:
        with pytest.raises((ExportError, VolumeError), match=message):
            export(bad, tmp_path / "out", ExportConfig(), box)
    assert not (tmp_path / "out").exists()
    with pytest.raises(VolumeError, match=r"float.h5:float: .*0\.5"):
        export(Sources(segmentation=floats), tmp_path / "out", ExportConfig())


def test_bad_scores_are_an_error_and_leave_nothing(tmp_path, all_sources):
    (tmp_path / "bad").write_text("{}")
    with pytest.raises(ExportError, match="bad: "):
        export(replace(all_sources, errors=str(tmp_path / "bad")), tmp_path / "out", ExportConfig())
    assert not (tmp_path / "out").exists()


def test_other_folders_are_refused(tmp_path, sources):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.tex").write_text("years of work")
    with pytest.raises(ExportError, match="home: .*export"):
        export(sources, tmp_path / "home", ExportConfig())
    assert (tmp_path / "home/thesis.tex").read_text() == "years of work"
    with pytest.raises(UnwritableError, match="raw.h5 is a file"):
        export(sources, tmp_path / "raw.h5/out", ExportConfig())


def test_the_last_row_of_an_id_tells_its_group(tmp_path):
    (tmp_path / "map.csv").write_text("base_id,group_id\n9,1\n7,5\n7,4\n")
    assert [column.tolist() for column in read_groups(f"{tmp_path}/map.csv")] == [[7, 9], [4, 1]]
    (tmp_path / "map.csv").write_text("base_id,group_id\n")
    assert not read_groups(f"{tmp_path}/map.csv")[0].size
    (tmp_path / "map.csv").write_text(f"{2**64},2\n")
    with pytest.raises(ExportError, match="map.csv: "):
        read_groups(f"{tmp_path}/map.csv")


# Several jobs.


class One(NamedTuple):
    """An export by one job."""

    sources: Sources
    folder: Path
    content: dict[str, bytes]


CONFIG = ExportConfig(swc=True, min_mesh_voxels=100, threads=1)
NUM = 3
SHARED = MIPS[:4]  # by several jobs; a volume has no jobs for mips of a single shard


@pytest.fixture(scope="module")
def small_blocks():
    """Several blocks of everything, and a mip that no jobs share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precomputed, "CHUNK_ZYX", (8, 8, 8))
        patch.setattr(precomputed, "SHARD_BYTES", 32 * 8**3 * 8)
        patch.setattr(meshes, "BLOCK_ZYX", (12, 20, 30))
        patch.setattr(shards, "SHARD_BYTES", 2000)  # of meshes and skeletons
        patch.setattr(skeletons, "BLOCK_ZYX", (24, 35, 40))
        yield


def steps(*names):
    """Return the jobs of steps, those that share a step in reverse order."""
    for name in names:
        if name in (*SHARED, "pieces", LAST):
            yield from (Job(number, NUM, "" if name == LAST else name) for number in range(NUM, 0, -1))
        if name not in MIPS:
            yield Job(step=name)


ALL = [*steps("plan", *SHARED, "coarse", "pieces", LAST)]


def run(sources, out, jobs):
    """Do jobs as the workflow does, whose records keep the logs."""
    for job in jobs:
        record = f"{out}/neuroglancer.json.jobs/{job.step or LAST}/{job.number}-of-{job.of}.json" if job.of else None
        export(sources, out, CONFIG, job=replace(job, record_path=record))


def content(folder):
    """Return what is shown, without what jobs leave for their repetition."""
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {str(name): path.read_bytes() for name, path in files.items() if name.parts[0] != "neuroglancer.json.jobs"}


@pytest.fixture(scope="module")
def one(tmp_path_factory, small_blocks):
    """An export by one job in a folder with its sources; tests read both, and change only copies."""
    folder = tmp_path_factory.mktemp("sources")
    sources = write_all(folder)
    export(sources, folder / "one", CONFIG)
    return One(sources, folder / "one", content(folder / "one"))


def test_several_jobs_leave_the_bytes_of_one(tmp_path, one):
    assert not (one.folder / "neuroglancer.json.jobs").exists()
    assert len(read_json(one.folder / "segmentation/info")["scales"]) > len(SHARED)
    assert len(list((one.folder / "segmentation/mesh").glob("*.shard"))) > 1
    out = tmp_path / "several"
    run(one.sources, out, ALL[:-1])
    assert not (out / "neuroglancer.json").exists()
    assert all((out / f"neuroglancer.json.jobs/{step}/tables.json").exists() for step in ("plan", "coarse", "pieces"))
    run(one.sources, out, ALL[-1:])
    assert content(out) == one.content
    assert not [*out.rglob("z0*")], "pieces are removed"
    (out / "neuroglancer.json").unlink()  # as the workflow does before it repeats the last job
    run(one.sources, out, ALL[-1:])
    assert content(out) == one.content


@pytest.mark.slow
def test_killed_jobs_lose_the_block_in_flight(tmp_path, one, monkeypatch):
    """Each function dies once, at its second block, and the job is repeated."""
    out, killed = tmp_path / "killed", set()
    for owner, name in (
        (precomputed.Layer, "copy_shard"),
        (precomputed.Layer, "downsample_shard"),
        (meshes.Meshes, "pieces_in"),
        (meshes.Meshes, "write_joined"),
        (skeletons.Skeletons, "pieces_in"),
    ):
        real, calls = getattr(owner, name), itertools.count(1)

        def dying(*arguments, real=real, calls=calls, key=(owner, name)):
            if next(calls) == 2:
                killed.add(key)
                raise KeyboardInterrupt
            return real(*arguments)

        monkeypatch.setattr(owner, name, dying)
    repeated = 0
    for job in ALL:
        while True:
            try:
                run(one.sources, out, [job])
                break
            except KeyboardInterrupt:
                repeated += 1
    assert repeated == len(killed) == 5
    assert content(out) == one.content


def test_the_first_step_keeps_blocks_of_the_same_inputs_only(tmp_path, all_sources, small_blocks):
    out, mip0 = tmp_path / "out", Job(1, 1, "mip0")
    run(all_sources, out, [Job(step="plan"), mip0])
    shards = len(list(out.rglob("*.shard")))
    (out / "neuroglancer.json.jobs/plan/tables.json").unlink()  # as the workflow does before it repeats the step
    run(all_sources, out, [Job(step="plan")])
    assert len(list(out.rglob("*.shard"))) == shards > 1
    write(tmp_path / "seg.h5", (segments() > 0).astype(np.uint16), BOX.start, SIZE_NM)
    with pytest.raises(ExportError, match="Run --step plan"):
        run(all_sources, out, [mip0])
    run(all_sources, out, [Job(step="plan")])
    assert not list(out.rglob("*.shard"))


def test_other_tables_keep_the_blocks(tmp_path, one):
    run(one.sources, tmp_path / "several", ALL[:-1])
    run(replace(one.sources, errors=None), tmp_path / "several", ALL[-1:])
    shown = content(tmp_path / "several")
    voxels = [name for name in one.content if name.startswith(("segmentation/", "image/"))]
    assert voxels and all(shown[name] == one.content[name] for name in voxels)
    assert [name for name in shown if name.startswith("links/")] == ["links/whole.json"]


@pytest.mark.parametrize("job", [Job(1, 1, "mip1"), Job(1, 1, "pieces"), Job(1, 1), Job(step=LAST)])
def test_a_job_without_those_before_it_says_so(tmp_path, all_sources, job):
    run(all_sources, tmp_path / "out", [Job(step="plan")])
    with pytest.raises(VolumeError, match="Run "):
        run(all_sources, tmp_path / "out", [job])
