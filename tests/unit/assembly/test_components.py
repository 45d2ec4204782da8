"""Connected components of segments, and the tables that go with them."""

import numpy as np
import pytest
from skimage.measure import label

from ffn.assembly.components import Labels, write_components
from ffn.geometry import Box
from ffn.io.open import read_table
from ffn.io.scratch import Tables
from ffn.io.volume import Placement

from ..volumes import read

BOX = Box((3, -5, 10), (13, 9, 30))
SIZE = (10.0, 10.0, 10.0)


NOTHING = dict.fromkeys(("origins", "overlaps"), np.empty((0, 6), np.int64))


def components(folder, labels, min_voxels=1, block=(99, 99, 99), tables=NOTHING):
    """Return the labels that are written, and where."""
    spec = f"{folder}/out.zarr"
    placement = Placement(BOX, SIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ffn.assembly.components.PART_ZYX", block)
        write_components(spec, placement, Labels(lambda b: labels[b.slices(BOX.start)], Tables(tables)), min_voxels, {})
    return read(spec), spec


@pytest.mark.parametrize("block", [(99, 99, 99), (10, 14, 1), (3, 4, 7)])
def test_every_id_is_one_component_wherever_blocks_end(block, tmp_path):
    labels = np.random.default_rng(0).choice([0, 4, 7], BOX.shape, p=[0.5, 0.25, 0.25]).astype(np.uint64)
    found, _ = components(tmp_path, labels, block=block)
    expected = label(labels, connectivity=1)
    pairs = np.unique(np.stack([found.ravel(), expected.ravel().astype(np.uint64)], axis=1), axis=0)
    assert len(pairs) == len(np.unique(found)) == len(np.unique(expected))
    assert (found == components(tmp_path, labels)[0]).all()
    largest = np.bincount(expected[labels == 4]).argmax()
    assert (found[expected == largest] == 4).all() and found.max() == 7 + len(pairs) - 3


def test_specks_become_background_and_a_volume_may_have_no_components(tmp_path):
    labels = np.zeros(BOX.shape, np.uint64)
    labels[2:5, 2:5, 0:9], labels[2:5, 2:5, 11:14], labels[8, 0, 0] = 5, 5, 5
    found, spec = components(tmp_path, labels, min_voxels=27)
    assert np.unique(found[labels > 0]).tolist() == [0, 5, 6]
    assert (found[2:5, 2:5, 0:9] == 5).all() and (found[2:5, 2:5, 11:14] == 6).all() and found[8, 0, 0] == 0
    assert read_table(spec, "components").tolist() == [[5, 5], [6, 5]]
    assert not components(tmp_path, labels, min_voxels=999)[0].any()
    found, spec = components(tmp_path, np.zeros(BOX.shape, np.uint64), block=(4, 5, 6))
    assert not found.any() and read_table(spec, "components").shape == (0, 2)
    full = np.full(BOX.shape, 3, np.uint64)
    assert (components(tmp_path, full, block=(4, 5, 6))[0] == 3).all()


@pytest.mark.parametrize("block", [(99, 99, 99), (3, 4, 7)])
def test_tables_follow_the_components(block, tmp_path):
    labels = np.zeros(BOX.shape, np.uint64)
    labels[1:4, 1:4, 0:9], labels[1:4, 1:4, 11:14] = 5, 5  # the second gets id 10
    labels[5:8, 1:4, 0:9], labels[0, 0, 19] = 8, 9
    seeds = [(2, 2, 1), (2, 2, 12), (9, 9, 9), (6, 2, 3), (0, 0, 19)]
    owners = [5, 5, 5, 8, 9]
    origins = np.array([(i, *np.add(BOX.start, s), 40, 1) for i, s in zip(owners, seeds, strict=True)])
    overlaps = np.array([(5, 8, 0, 0, 24, 70), (5, 8, 0, 24, 24, 5), (5, 9, 0, 0, 0, 3), (5, 9, 0, 0, 24, 3)])
    _, spec = components(tmp_path, labels, 9, block, {"origins": origins, "overlaps": overlaps})
    assert read_table(spec, "origins").tolist() == origins[:4].tolist()  # of objects; the speck's is gone
    assert read_table(spec, "overlaps").tolist() == [[5, 8, 0, 0, 24, 70], [5, 8, 0, 24, 24, 5]], "of objects"
