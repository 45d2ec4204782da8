"""The content of an export folder, and what is refused."""

import os

import numpy as np
import pytest
from PIL import Image

from ffn.cli import main
from ffn.errors import ExportError, VolumeError
from ffn.geometry import Box
from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export
from ffn.viewing.inputs import Sources
from ffn.viewing.state import load_state, located

from ..volumes import read_scale, write
from .conftest import BOX, SIZE_NM, read_json, two_tubes


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
    assert not [path for path in tmp_path.glob("out/**/*") if path.suffix == ".gz"]


def test_the_folder_may_be_above_the_working_one(tmp_path, sources, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    export(sources, "../out", ExportConfig(formats=("precomputed", "ome-zarr")))
    assert (tmp_path / "out/image/info").is_file() and [*(tmp_path / "out").rglob("zarr.json")]


def test_segment_properties_count_voxels_of_all_segments_and_small_ones_have_no_mesh(tmp_path, sources, cloud_volume):
    export(sources, tmp_path / "out", ExportConfig(min_mesh_voxels=19))
    inline = read_json(tmp_path / "out/segmentation/segment_properties/info")["inline"]
    assert inline["ids"] == ["4", "9", "70000"]
    values = {column["id"]: column["values"] for column in inline["properties"]}
    assert values["voxels"] == [6 * 9 * 90, 6 * 10 * 90, 2 * 3 * 3]
    assert values["z_start"] == [26, 26, 40] and values["z_stop"] == [32, 32, 42]
    assert values["y_start"] == [11, 0, 40] and values["x_stop"] == [390, 390, 308]
    assert values["truth"] == [4, 9, 0] and values["truth_share"] == [1, 1, 0]
    volume = cloud_volume(f"file://{tmp_path}/out/segmentation", progress=False)
    meshes = volume.mesh.get([4, 9, 70_000])
    assert len(meshes[4].faces) and len(meshes[9].faces) and not meshes[70_000]


def test_the_state_shows_the_neurons_from_the_centre(tmp_path, sources):
    export(sources, tmp_path / "out", ExportConfig())
    state = located(load_state(tmp_path / "out"), "http://127.0.0.1:1")
    image, segmentation, skeletons, truth = state["layers"]
    assert image["source"] == "precomputed://http://127.0.0.1:1/image"
    assert image["shaderControls"]["normalized"]["range"] == [100, 200]
    assert segmentation["segments"] == ["9", "4"], "the speck has no mesh"
    assert truth["visible"] is skeletons["visible"] is False and "visible" not in segmentation
    assert state["position"] == [345, 25, 32]
    assert state["dimensions"] == {"x": [10e-9, "m"], "y": [8e-9, "m"], "z": [20e-9, "m"]}


def test_a_repeated_export_replaces_the_first_with_the_same_bytes(tmp_path, sources):
    def content():
        files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in files}

    export(sources, tmp_path / "out", ExportConfig())
    first = content()
    (tmp_path / "out/neuroglancer.json").unlink()  # as the workflow does before it runs a rule again
    export(sources, tmp_path / "out", ExportConfig())
    assert content() == first
    assert sorted(os.listdir(tmp_path)) == ["out", "raw.h5", "seg.h5", "truth.h5"]


def test_a_box_crops_all_volumes(tmp_path, sources):
    box = Box((25, 0, 310), (100, 12, 350))
    export(sources, tmp_path / "out", ExportConfig(image_encoding="png"), box)
    assert np.array_equal(read_scale(tmp_path / "out/segmentation", 0), two_tubes()[5:, 10:22, 10:50])
    assert read_scale(tmp_path / "out/truth", 0).shape == (5, 12, 40)
    assert read_json(tmp_path / "out/provenance.json")["inputs"]["box"] == "25:44,0:12,310:350"


def test_a_segmentation_without_segments_can_be_exported(tmp_path):
    empty = write(tmp_path / "seg.h5", np.zeros(BOX.shape, np.uint8), BOX.start, SIZE_NM)
    export(Sources(segmentation=empty), tmp_path / "out", ExportConfig())
    assert read_json(tmp_path / "out/segmentation/segment_properties/info")["inline"]["ids"] == []
    assert load_state(tmp_path / "out")["layers"][0]["segments"] == []


def test_the_voxel_size_may_come_from_another_volume(tmp_path, sources):
    from ffn.io import hdf5

    with hdf5.create_file(tmp_path / "foreign.h5") as file:
        file.create_dataset("stack", data=np.ones((4, 5, 6), np.uint16))
    foreign = f"{tmp_path}/foreign.h5:stack"
    export(Sources(image=sources.image, truth=foreign), tmp_path / "out", ExportConfig())
    assert read_json(tmp_path / "out/truth/info")["scales"][0]["resolution"] == [10, 8, 20]
    with pytest.raises(ExportError, match="foreign.h5:stack: no voxel size found, one is needed. Ingest"):
        export(Sources(truth=foreign), tmp_path / "other", ExportConfig())


def test_voxel_sizes_may_be_rounded_otherwise(tmp_path, sources):
    """0.0098 µm is not quite 9.8 nm."""
    size = (20.0, 0.0098 * 1e3, 9.8)
    assert size[1] != 9.8
    image = write(tmp_path / "image.h5", np.ones(BOX.shape, np.uint8), BOX.start, size)
    labels = write(tmp_path / "labels.h5", two_tubes(), BOX.start, (20.0, 9.8, 9.8))
    export(Sources(image=image, segmentation=labels), tmp_path / "out", ExportConfig())
    for name in ("image", "segmentation"):
        assert read_json(tmp_path / f"out/{name}/info")["scales"][0]["resolution"] == [9.8, size[1], 20]


def test_volumes_of_other_formats_can_be_exported(tmp_path, sources):
    """Slices as PNG, labels as the precomputed volume of another export."""
    export(sources, tmp_path / "first", ExportConfig(image_encoding="png"))
    (tmp_path / "slices").mkdir()
    grey = np.random.default_rng(0).integers(0, 256, BOX.shape, np.uint8)
    for z, section in enumerate(grey):
        Image.fromarray(section).save(tmp_path / f"slices/{z:03d}.png")
    again = Sources(image=f"{tmp_path}/slices", segmentation=f"{tmp_path}/first/segmentation")
    export(again, tmp_path / "out", ExportConfig(image_encoding="png", threads=3))
    assert np.array_equal(read_scale(tmp_path / "out/image", 0), grey)
    assert np.array_equal(read_scale(tmp_path / "out/segmentation", 0), two_tubes())
    assert read_json(tmp_path / "out/segmentation/info")["scales"][0]["voxel_offset"] == [300, -10, 20]


def test_negative_ids_of_a_segmentation_are_not_exported(tmp_path):
    signed = np.where(two_tubes() == 0, -1, two_tubes().astype(np.int32))
    labels = write(tmp_path / "labels.h5", signed, BOX.start, (20.0, 10.0, 10.0))
    export(Sources(segmentation=labels, supervoxels=labels), tmp_path / "out", ExportConfig())
    for name in ("segmentation", "supervoxels"):
        assert np.array_equal(read_scale(tmp_path / f"out/{name}", 0), two_tubes())


def test_what_cannot_be_exported_leaves_nothing(tmp_path, sources):
    floats = write(tmp_path / "float.h5", np.zeros(BOX.shape, np.float32), BOX.start, SIZE_NM)
    other = write(tmp_path / "other.h5", two_tubes(), BOX.start, (8.0, 8.0, 8.0))
    cases = [
        (Sources(), None, "no volume is given, expected --image"),
        (Sources(image=floats), None, "float.h5:float: has type float32, expected an image of"),
        (
            Sources(image=sources.image, segmentation=other),
            None,
            r"voxel sizes differ: \(20.0, 8.0, 10.0\) of",
        ),
        (
            sources,
            Box((35, 0, 300), (40, 9, 350)),
            "truth.h5:truth: covers .* an overlap with --box 35:40,0:9",
        ),
    ]
    for bad, box, message in cases:
        with pytest.raises(ExportError, match=message):
            export(bad, tmp_path / "out", ExportConfig(), box)
    with pytest.raises(VolumeError, match="float.h5:float: has type float32, expected integer labels"):
        export(Sources(segmentation=floats), tmp_path / "out", ExportConfig())
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_an_export_is_not_replaced(tmp_path, sources):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.tex").write_text("years of work")
    with pytest.raises(ExportError, match="home: is not an export, so it will not be replaced"):
        export(sources, tmp_path / "home", ExportConfig())
    assert (tmp_path / "home/thesis.tex").read_text() == "years of work"


def test_an_output_below_a_file_is_an_error(tmp_path, sources):
    with pytest.raises(ExportError, match=r"raw.h5/out: cannot be written \(.*\). Choose another --out"):
        export(sources, tmp_path / "raw.h5/out", ExportConfig())


def test_every_input_is_passed_on(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.viewing.export.export", lambda *given: calls.append(given))
    names = ("image", "segmentation", "truth", "supervoxels", "agglomeration", "errors", "edges", "coordinates")
    options = [word for name in names for word in (f"--{name}", f"{name}.h5")]
    several = ["--origins", "a.h5", "b.h5", "--probability", "c.h5:p", "--step", "mip1", "--job", "2-of-3"]
    assert main(["export", *options, *several, "--out", "out", "--threads", "3"]) == 0
    ((sources, out, config, box, job),) = calls
    given = {name: f"{name}.h5" for name in names} | {"origins": ("a.h5", "b.h5"), "probability": ("c.h5:p",)}
    assert sources == Sources(**given) and vars(sources) == given
    assert (out, config.threads, box) == ("out", 3, None)
    assert (job.step, job.number, job.of) == ("mip1", 2, 3)
