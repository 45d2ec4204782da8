"""What an export holds besides the volumes (layers for debugging, agglomeration, errors with links), and its check."""

import json
import shutil

import numpy as np
import pytest
import tensorstore as ts

from ffn.errors import ExportError
from ffn.geometry import Box
from ffn.io import hdf5
from ffn.viewing import check, volumes
from ffn.viewing.config import ExportConfig, ViewConfig
from ffn.viewing.export import export
from ffn.viewing.inputs import Mosaic, Sources
from ffn.viewing.precomputed import Scale, plan_scales, read_scale
from ffn.viewing.state import load_state
from ffn.viewing.viewer import view

from .test_export import BOX, SIZE_NM, write_volume

ERRORS = [
    {"kind": kind, "name": name, "position_zyx": place, "truth_ids": truth, "segment_ids": segments, "voxels": 7}
    for kind, name, place, truth, segments in (
        ("split", "split-01", [29, 4, 310], [9], [90, 91]),
        ("merge", "merge-01", [30, 9, 320], [9, 4], [91]),
        ("split", "split-02", [29, 4, 340], [4], [44, 91]),
    )
]


def true_tubes():
    labels = np.zeros(BOX.shape, np.uint32)
    labels[6:12, 10:20, :] = 9
    labels[6:12, 21:30, :] = 4
    return labels


def segments():
    """Tube 9 in two pieces, of which one has got a part of tube 4."""
    labels = np.zeros(BOX.shape, np.uint16)
    labels[6:12, 10:20, :40], labels[6:12, 10:20, 40:] = 90, 91
    labels[6:12, 21:30, :80], labels[6:12, 21:30, 80:] = 44, 91
    return labels


@pytest.fixture
def sources(tmp_path):
    labels = segments()
    half = Box(BOX.start, (44, 60, 350)), Box((20, -10, 340), BOX.stop)
    parts = [write_volume(tmp_path / f"p{i}.h5", np.full(b.shape, 99 + i, np.uint8), b) for i, b in enumerate(half)]
    origins = np.array([[1, 28, 2, 310, 12, 1], [2, 28, 2, 380, 5, 1], [3, 28, 14, 330, 8, 2], [4, 21, -9, 301, 1, 1]])
    hdf5.write_arrays(tmp_path / "origins.h5", {"origins": origins}, {})
    coordinates = np.array([[30, 0, 320], [30, 1, 321], [30, 2, 322], [0, 0, 0]], np.int32)
    hdf5.write_arrays(tmp_path / "coordinates.h5", {"partitions/3": coordinates, "partitions/11": coordinates[:1]}, {})
    (tmp_path / "groups.csv").write_text("base_id,group_id\n90,1\n91,1\n44,44\n7,44\n")
    (tmp_path / "scores.json").write_text(json.dumps({"errors": ERRORS}))
    return Sources(
        image=write_volume(tmp_path / "raw.h5", (100 + labels // 2).astype(np.uint8)),
        segmentation=write_volume(tmp_path / "seg.h5", labels),
        truth=write_volume(tmp_path / "truth.h5", true_tubes()),
        edges=write_volume(tmp_path / "edges.h5", (labels % 2).astype(np.uint8)),
        probability=tuple(parts),
        origins=(str(tmp_path / "origins.h5"),),
        agglomeration=str(tmp_path / "groups.csv"),
        coordinates=str(tmp_path / "coordinates.h5"),
        errors=str(tmp_path / "scores.json"),
    )


def layers(folder):
    return {layer["name"]: layer for layer in load_state(folder, "http://h")["layers"]}


def test_all_layers_are_there_and_only_two_are_seen_at_once(tmp_path, sources):
    export(sources, tmp_path / "out", ExportConfig(num_links=1))
    found = layers(tmp_path / "out")
    names = "image segmentation agglomerated skeletons truth edges probability coordinates errors".split()
    assert [name.split()[-1] for name in found] == names
    assert [name for name, layer in found.items() if layer.get("visible", True)] == ["image", "segmentation"]
    assert found["agglomerated"]["equivalences"] == [["90", "91"]], "7 is not in the volume, 44 is alone"
    assert [point["point"] for point in found["errors"]["annotations"]] == [[310.5, 4.5, 29.5], [320.5, 9.5, 30.5]]
    assert set(np.unique(read_scale(tmp_path / "out/edges", 0))) == {0, 255}
    assert not list((tmp_path / "out").rglob("*.gz"))


def test_properties_know_origins_and_groups(tmp_path, sources):
    export(sources, tmp_path / "out", ExportConfig())
    inline = json.loads((tmp_path / "out/segmentation/segment_properties/info").read_text())["inline"]
    values = {column["id"]: column["values"] for column in inline["properties"]}
    assert inline["ids"] == ["44", "90", "91"]
    assert values["fovs"] == [8, 12, 5] and values["seed_x"] == [330, 310, 380]
    assert values["group"] == [44, 1, 1]
    assert values["truth"] == [4, 9, 9] and values["truth_share"] == pytest.approx([1, 1, 500 / 590])


def test_supervoxels_carry_the_groups_where_they_are_given(tmp_path, sources):
    base = Sources(truth=sources.truth, supervoxels=sources.segmentation, agglomeration=sources.agglomeration)
    export(base, tmp_path / "out", ExportConfig())
    assert layers(tmp_path / "out")["supervoxels"]["equivalences"] == [["90", "91"]]


def test_overlapping_subvolumes_are_one_probability(sources):
    mosaic = Mosaic(sources.probability)
    assert mosaic.box == BOX and mosaic.voxel_size_zyx_nm == SIZE_NM
    row = mosaic.read(Box((25, 0, 338), (26, 1, 352)))[0, 0]
    assert row.tolist() == [99] * 2 + [100] * 12


def test_links_look_at_the_errors(tmp_path, sources):
    export(sources, tmp_path / "out", ExportConfig(num_links=1))
    assert sorted(file.stem for file in (tmp_path / "out/links").iterdir()) == ["merge-01", "split-01", "whole"]
    split = load_state(tmp_path / "out", "http://h", "split-01")
    assert split["position"] == [310.5, 4.5, 29.5]
    shown = {layer["name"]: layer for layer in split["layers"]}
    assert shown["segmentation"]["segments"] == ["90", "91"] and shown["truth"]["segments"] == ["9"]
    assert shown["segmentation"]["visible"] and not shown["truth"]["visible"] and shown["errors"]["visible"]
    merge = {layer["name"]: layer for layer in load_state(tmp_path / "out", "http://h", "merge-01")["layers"]}
    assert merge["truth"]["visible"] and not merge["segmentation"]["visible"]
    with pytest.raises(
        ExportError, match="--link: 'split-02' is not in .*, expected one of: merge-01, split-01, whole"
    ):
        view(tmp_path / "out", ViewConfig(link="split-02"), announce=pytest.fail)


def test_training_coordinates_are_points_inside_the_box(tmp_path, sources):
    export(sources, tmp_path / "out", ExportConfig())
    info = json.loads((tmp_path / "out/coordinates/info").read_text())
    content = (tmp_path / "out/coordinates/all/0_0_0").read_bytes()
    assert np.frombuffer(content[:8], "<u8") == 4
    rows = np.frombuffer(content[8 : 8 + 4 * 16], [("xyz", "<f4", 3), ("class", "u1"), ("fill", "u1", 3)])
    assert rows["xyz"][0].tolist() == [320.5, 0.5, 30.5] and rows["class"].tolist() == [3, 3, 3, 11]
    base = {"driver": "file", "path": f"{tmp_path}/out/coordinates/by_id/"}
    spec = {"driver": "neuroglancer_uint64_sharded", "metadata": info["by_id"]["sharding"], "base": base}
    assert ts.KvStore.open(spec).result().read((3).to_bytes(8, "big")).result().value == rows[3].tobytes()
    export(sources, tmp_path / "few", ExportConfig(max_points=2))
    # Every third of each partition; of those one lies outside of the volume.
    assert (tmp_path / "few/coordinates/all/0_0_0").read_bytes()[:1] == b"\x02"


def test_layers_for_debugging_may_lie_elsewhere(tmp_path, sources):
    far = Sources(
        image=sources.image,
        edges=write_volume(tmp_path / "far.h5", np.ones((3, 4, 5), np.uint8), Box((90, 0, 0), (93, 4, 5))),
        coordinates=sources.coordinates,
    )
    export(far, tmp_path / "out", ExportConfig(), Box((20, 50, 300), (44, 60, 390)))
    assert list(layers(tmp_path / "out")) == ["image"]
    with pytest.raises(ExportError, match="--box: 20:44,.* overlaps none of edges, at least one"):
        export(Sources(edges=far.edges), tmp_path / "nothing", ExportConfig(), Box((20, 50, 300), (44, 60, 390)))


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        ("agglomeration", "1,2\n3\n", r"bad: line 2 is '3', expected base_id,group_id"),
        ("agglomeration", "1,-2\n", r"bad: line 1 is '1,-2', expected"),
        ("errors", "{}", "bad: has no list of errors, expected scores of this version"),
        (
            "errors",
            '{"errors": [{"kind": "hole"}]}',
            "bad: has the error .*, expected .*'name'.*evaluate again",
        ),
        (
            "errors",
            json.dumps({"errors": [ERRORS[0] | {"name": "../../split-01"}]}),
            "has the error .* such as split",
        ),
    ],
)
def test_bad_tables_are_one_line_and_leave_nothing(tmp_path, sources, option, content, message):
    (tmp_path / "bad").write_text(content)
    with pytest.raises(ExportError, match=message):
        export(Sources(image=sources.image, **{option: str(tmp_path / "bad")}), tmp_path / "out", ExportConfig())
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def test_files_without_origins_or_coordinates_are_one_line(tmp_path, sources):
    raw = str(tmp_path / "raw.h5")
    with pytest.raises(ExportError, match="raw.h5: has .* but no table 'origins', expected a file of 'ffn segment'"):
        export(Sources(segmentation=sources.segmentation, origins=(raw,)), tmp_path / "out", ExportConfig())
    with pytest.raises(ExportError, match="raw.h5: has no coordinates, expected a file of 'ffn coordinates'"):
        export(Sources(image=sources.image, coordinates=raw), tmp_path / "out", ExportConfig())


def test_a_mip_too_large_to_mesh_is_replaced_by_a_coarser_one(monkeypatch):
    scales = plan_scales(Box.from_shape((200, 200, 200)), (10.0, 10.0, 10.0))
    assert volumes.mesh_mip(scales, 1) == 1 and volumes.mesh_mip(scales, 9) == len(scales) - 1
    monkeypatch.setattr(volumes, "MAX_MESHED_VOXELS", 60**3)
    assert volumes.mesh_mip(scales, 0) == volumes.mesh_mip(scales, 1) == 2
    monkeypatch.setattr(volumes, "MAX_MESHED_VOXELS", 1)
    assert volumes.mesh_mip(scales, 0) == len(scales) - 1


class TestInterruption:
    """A killed export resumes, unless its sources have changed."""

    def interrupt(self, monkeypatch, sources, out):
        with monkeypatch.context() as patch:
            patch.setattr("ffn.viewing.volumes.write_meshes", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                export(sources, out, ExportConfig())
        assert not out.exists()
        return out.with_name(f".{out.name}.partial")

    def times(self, folder):
        return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in folder.rglob("*.shard")}

    def test_whole_shards_are_kept(self, monkeypatch, tmp_path, sources):
        partial = self.interrupt(monkeypatch, sources, tmp_path / "out")
        before = self.times(partial)
        assert before
        export(sources, tmp_path / "out", ExportConfig(threads=3))
        assert before.items() <= self.times(tmp_path / "out").items()
        assert not partial.exists()
        export(sources, tmp_path / "at once", ExportConfig())
        for file in (tmp_path / "at once").rglob("*"):
            if file.is_file():
                other = tmp_path / "out" / file.relative_to(tmp_path / "at once")
                assert other.read_bytes() == file.read_bytes(), other

    def test_a_changed_source_starts_over(self, monkeypatch, tmp_path, sources):
        before = self.times(self.interrupt(monkeypatch, sources, tmp_path / "out"))
        write_volume(tmp_path / "seg.h5", (segments() > 0).astype(np.uint16))
        export(sources, tmp_path / "out", ExportConfig())
        assert not before.items() & self.times(tmp_path / "out").items()
        assert np.array_equal(read_scale(tmp_path / "out/segmentation", 0), segments() > 0)

    def test_two_at_once_are_refused(self, monkeypatch, tmp_path, sources):
        def again(*_, **__):
            export(sources, tmp_path / "out", ExportConfig())

        monkeypatch.setattr("ffn.viewing.export.write_image", again)
        with pytest.raises(ExportError, match="out: another process is exporting to it, only one may"):
            export(sources, tmp_path / "out", ExportConfig())


@pytest.mark.usefixtures("cloud_volume")
class TestCheck:
    """The export is compared with its sources by cloud-volume."""

    @pytest.mark.parametrize("encoding", ["jpeg", "png"])
    def test_an_export_is_equal_to_its_sources(self, tmp_path, sources, encoding):
        export(sources, tmp_path / "out", ExportConfig(image_encoding=encoding), check=True)
        assert (tmp_path / "out/neuroglancer.json").exists()

    @pytest.mark.parametrize("place", ["voxels", "offset", "resolution"])
    def test_a_difference_is_found(self, monkeypatch, tmp_path, sources, place):
        written = {}
        real = check.check_export

        def damaged(folder, parts, config):
            path = folder / "segmentation/info"
            info = json.loads(path.read_text())
            scale = info["scales"][0]
            if place == "voxels":
                shutil.copy(folder / "truth" / scale["key"] / "0.shard", folder / "segmentation" / scale["key"])
            elif place == "offset":
                scale["voxel_offset"][2] += 1
            else:
                scale["resolution"][0] *= 2
            path.write_text(json.dumps(info))
            written["folder"] = folder
            real(folder, parts, config)

        monkeypatch.setattr(check, "check_export", damaged)
        with pytest.raises(ExportError, match=f"--check: segmentation: {place}.*expected|--check: .* differ by"):
            export(sources, tmp_path / "out", ExportConfig(), check=True)
        assert not (tmp_path / "out").exists()
        assert not (written["folder"] / ".plan.json").exists(), "what failed is not taken up again"

    def test_meshes_at_another_place_are_found(self, monkeypatch, tmp_path, sources):
        def moved(folder, labels, scale, *shown, write=volumes.write_meshes):
            write(folder, labels, Scale(scale.box.shift((0, 2, 0)), scale.voxel_size_zyx_nm), *shown)

        monkeypatch.setattr(volumes, "write_meshes", moved)
        with pytest.raises(ExportError, match="--check: segmentation: mesh of .* reaches .* nm, expected .*zyx"):
            export(sources, tmp_path / "out", ExportConfig(), check=True)

    def test_without_cloud_volume_nothing_is_begun(self, monkeypatch, tmp_path, sources):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ExportError, match="--check: cloud-volume is not installed, it is needed. Run: pip"):
            export(sources, tmp_path / "out", ExportConfig(), check=True)
        assert not (tmp_path / ".out.partial").exists()
