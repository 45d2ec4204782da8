"""What an image shows besides tissue, and where its membranes are; what a model records of it."""

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.io.volume import Placement
from ffn.model.tissue import Tissue, is_padding, membranes_of, survey_of
from ffn.synthetic.config import SynthConfig
from ffn.synthetic.write import make_phantom

from ...volumes import write_volume

SIZE = (10.0, 10.0, 10.0)
TRAINED = Tissue((SIZE,), "dark")


@pytest.fixture(scope="module")
def phantom():
    return make_phantom(SynthConfig(shape_zyx=(40, 72, 72)), 1).image


def survey(path, voxels):
    return survey_of(write_volume(f"{path}/raw.h5:raw", voxels, Placement(Box.from_shape(voxels.shape), SIZE)))


@pytest.mark.parametrize(("change", "side"), [(lambda v: v, "dark"), (lambda v: 255 - v, "bright")])
def test_the_side_of_membranes_is_seen_and_compared(phantom, change, side):
    voxels = change(phantom)
    found = membranes_of(lambda box: voxels[box.slices()], Box.from_shape(voxels.shape), SIZE)
    assert found == side
    assert (TRAINED.other_membranes(found) is None) == (side == "dark")


def test_membranes_of_noise_are_unclear():
    noise = np.random.default_rng(0).normal(128, 20, (16, 96, 96)).astype(np.uint8)
    assert membranes_of(lambda box: noise[box.slices()], Box.from_shape(noise.shape), SIZE) is None


@pytest.mark.parametrize("level", [0, 128, 255])
@pytest.mark.parametrize("kind", ["triangles", "sections"])
def test_padding_does_not_count_and_is_told(phantom, tmp_path, kind, level):
    padded = phantom.copy()
    y, x = np.mgrid[:72, :72]
    where = np.zeros(phantom.shape, bool)
    where[:, (y + x < 60) | (y - x > 40)] = kind == "triangles"
    where[10:14] |= kind == "sections"
    padded[where] = level
    found = survey(tmp_path, padded)
    assert found.padding.keys() == {level} and found.membranes == "dark"
    tissue = padded[~where]
    assert found.histogram.mean == pytest.approx(tissue.mean(), abs=2)
    assert found.histogram.stddev == pytest.approx(tissue.std(), abs=2)
    (line,) = found.complaints("raw.h5:raw", TRAINED)
    assert f"range: [{level}, {level}]" in line
    marked = is_padding(padded, [level])
    assert marked[where].mean() > 0.99 and marked[~where].mean() < 0.002


def test_a_few_voxels_of_0_and_a_drawing_are_no_padding(phantom, tmp_path):
    speckled = phantom.copy()
    speckled[np.random.default_rng(0).random(phantom.shape) < 0.01] = 0
    drawing = np.where(phantom > 120, 0, 200).astype(np.uint8)
    drawing[:20] = 90
    assert not survey(tmp_path, speckled).padding and not survey(tmp_path, drawing).padding


@pytest.mark.parametrize(("size", "is_other"), [(SIZE, False), ((10.4, 10, 10), False), ((30.0, 4.0, 4.0), True)])
def test_another_voxel_size_is_told(size, is_other):
    assert (TRAINED.other_size(size) is not None) == is_other
    assert Tissue().other_size(size) is TRAINED.other_size(None) is None
    assert Tissue.from_json(TRAINED.as_json()) == TRAINED
