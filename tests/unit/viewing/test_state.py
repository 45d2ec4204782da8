"""The states of an export: layers, links, and the first view."""

from dataclasses import replace

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.viewing import inputs
from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export
from ffn.viewing.state import choose_segments, load_state, located, make_state, select_segments


def layers(folder, link=None):
    return {layer["name"]: layer for layer in located(load_state(folder, link), "http://h")["layers"]}


def test_all_layers_are_there_and_only_two_are_visible_at_first(tmp_path, all_sources, monkeypatch):
    monkeypatch.setattr(inputs, "NUM_LINKS", 1)
    out = tmp_path / "out"
    export(replace(all_sources, supervoxels=all_sources.segmentation), out, ExportConfig())
    found = layers(out)
    names = "image segmentation skeletons truth supervoxels errors".split()
    assert [name.split()[-1] for name in found] == names
    assert [name for name, layer in found.items() if layer.get("visible", True)] == ["image", "segmentation"]
    gap, point = found["errors"]["annotations"]
    assert (gap["pointA"], gap["pointB"], point["point"]) == (
        [310.5, 4.5, 29.5],
        [314.5, 4.5, 29.5],
        [320.5, 9.5, 30.5],
    )
    assert sorted(file.stem for file in (out / "links").iterdir()) == ["merge-01", "split-01", "whole"]
    assert load_state(out, "split-01")["position"] == [312.5, 4.5, 29.5], "the middle of the gap"
    split, merge = layers(out, "split-01"), layers(out, "merge-01")
    assert split["segmentation"]["segments"] == ["90", "91"] and split["truth"]["segments"] == ["9"]
    assert split["segmentation"]["visible"] and not split["truth"]["visible"] and split["errors"]["visible"]
    assert merge["truth"]["visible"] and not merge["segmentation"]["visible"]


def test_segments_that_hide_others_are_left_out():
    sizes = np.array([500, *range(2, 40)])
    assert choose_segments(np.arange(1, 40), sizes, 1000) == list(range(39, 23, -1))
    assert choose_segments(np.array([5, 6]), np.array([600, 400]), 1000) == [5, 6]


def test_sections_fill_their_panels_and_all_layers_have_the_selection():
    """A cube of 1000 nm in voxels of 40, 10, 10 nm: 100 of the shortest sides on each axis."""
    state = make_state([], Box.from_shape((25, 100, 100)), (40.0, 10.0, 10.0))
    assert state["crossSectionScale"] == pytest.approx(100 / 700)
    assert 100 < state["projectionScale"] < 100 * 3**0.5
    state = {"layers": [{"type": "image"}, {"type": "segmentation", "segments": ["1"]}]}
    assert select_segments(state, (3, 2**64 - 1))["layers"][1]["segments"] == ["3", str(2**64 - 1)]
