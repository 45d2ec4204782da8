"""The layers of an export's state."""

import numpy as np
import pytest

from ffn.errors import ExportError
from ffn.geometry import Box
from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export
from ffn.viewing.inputs import Sources
from ffn.viewing.layers import labels_layer, with_groups
from ffn.viewing.properties import Groups
from ffn.viewing.state import load_state, located

from ..volumes import read_scale, write
from .conftest import SIZE_NM


def layers(folder):
    return {layer["name"]: layer for layer in located(load_state(folder), "http://h")["layers"]}


def test_all_layers_are_there_and_only_two_are_visible_at_first(tmp_path, all_sources):
    export(all_sources, tmp_path / "out", ExportConfig(num_links=1))
    found = layers(tmp_path / "out")
    names = "image segmentation agglomerated skeletons truth edges probability coordinates errors".split()
    assert [name.split()[-1] for name in found] == names
    assert [name for name, layer in found.items() if layer.get("visible", True)] == ["image", "segmentation"]
    assert found["agglomerated"]["equivalences"] == [["90", "91"]], "7 is not in the volume, 44 is alone"
    assert [point["point"] for point in found["errors"]["annotations"]] == [[310.5, 4.5, 29.5], [320.5, 9.5, 30.5]]
    assert set(np.unique(read_scale(tmp_path / "out/edges", 0))) == {0, 255}
    assert not list((tmp_path / "out").rglob("*.gz"))


def test_the_groups_are_those_of_supervoxels_if_given(tmp_path, all_sources):
    base = Sources(
        truth=all_sources.truth, supervoxels=all_sources.segmentation, agglomeration=all_sources.agglomeration
    )
    export(base, tmp_path / "out", ExportConfig())
    assert layers(tmp_path / "out")["supervoxels"]["equivalences"] == [["90", "91"]]


def test_layers_for_debugging_may_lie_elsewhere(tmp_path, all_sources):
    far = Sources(
        image=all_sources.image,
        edges=write(tmp_path / "far.h5", np.ones((3, 4, 5), np.uint8), (90, 0, 0), SIZE_NM),
        coordinates=all_sources.coordinates,
    )
    export(far, tmp_path / "out", ExportConfig(), Box((20, 50, 300), (44, 60, 390)))
    assert list(layers(tmp_path / "out")) == ["image"]
    with pytest.raises(ExportError, match="--box: 20:44,.* overlaps none of edges, at least one"):
        export(Sources(edges=far.edges), tmp_path / "nothing", ExportConfig(), Box((20, 50, 300), (44, 60, 390)))


def test_the_smallest_groups_are_left_out_of_a_large_agglomeration(monkeypatch):
    monkeypatch.setattr("ffn.viewing.layers.MAX_MAPPED", 5)
    ids = np.arange(1, 9, dtype=np.uint64)
    groups = Groups(ids, np.array([1, 1, 1, 4, 4, 6, 6, 8], np.uint64))
    layer = with_groups(labels_layer("segmentation", [1]), groups, ids)
    assert layer["equivalences"] == [["1", "2", "3"], ["4", "5"]]


def test_a_segment_that_gives_its_group_the_name_needs_no_row():
    groups = Groups(np.array([2**53 + 1, 2**64 - 2], np.uint64), np.array([7, 7], np.uint64))
    layer = with_groups(labels_layer("segmentation", []), groups, np.array([7, 8, 2**53 + 1, 2**64 - 2], np.uint64))
    assert layer["equivalences"] == [["7", "9007199254740993", "18446744073709551614"]]
