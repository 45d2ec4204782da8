"""The Neuroglancer state of an export."""

import numpy as np
import pytest

from ffn.errors import ExportError
from ffn.geometry import Box
from ffn.viewing.state import choose_segments, load_state, make_state, select_segments


def test_the_first_view_leaves_out_segments_that_hide_all_others():
    sizes = np.array([500, *range(2, 40)])
    assert choose_segments(np.arange(1, 40), sizes, 1000) == list(range(39, 23, -1))
    assert choose_segments(np.array([5, 6]), np.array([600, 400]), 1000) == [5, 6]


def test_sections_fill_their_panels_whatever_the_voxel_size():
    """A cube of 1000 nm in voxels of 40, 10, 10 nm: 100 of the shortest sides on each axis."""
    state = make_state([], Box.from_shape((25, 100, 100)), (40.0, 10.0, 10.0))
    assert state["crossSectionScale"] == pytest.approx(100 / 700)
    assert 100 < state["projectionScale"] < 100 * 3**0.5


def test_segments_are_selected_in_all_layers_with_a_selection():
    state = {"layers": [{"type": "image"}, {"type": "segmentation", "segments": ["1"]}]}
    assert select_segments(state, (3, 2**64 - 1))["layers"][1]["segments"] == ["3", str(2**64 - 1)]


def test_a_damaged_state_is_an_error(tmp_path):
    (tmp_path / "neuroglancer.json").write_text("{")
    with pytest.raises(ExportError, match=r"neuroglancer.json: is not JSON \(.*\). Run ffn export again"):
        load_state(tmp_path)
