import numpy as np
import pytest

from ffn.config import Mask
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io import masks
from ffn.io.foreign.arrays import ArrayVolume
from ffn.io.masks import open_masked_truth, open_masks
from ffn.io.volume import IGNORED, NO_SIZE

from ..volumes import write

BOX = Box((4, 10, 20), (8, 16, 28))
SIZE = (40.0, 10.0, 10.0)


def masked(*masks, box=BOX, size=SIZE):
    with open_masks([Mask.model_validate(mask) for mask in masks], size) as opened:
        assert bool(opened) == bool(masks)
        return opened.read(box)


@pytest.fixture
def labels(tmp_path):
    """Labels 0 to 4 that cover more than `BOX`; returned with their path."""
    voxels = np.random.default_rng(1).integers(0, 5, (6, 10, 12)).astype(np.uint64)
    return write(tmp_path / "mask.h5", voxels, (3, 8, 18), SIZE), voxels[1:5, 2:8, 2:10]


def test_a_mask_names_values_and_several_leave_out_what_any_does(labels):
    path, voxels = labels
    np.testing.assert_array_equal(masked({"path": path}), voxels > 0)
    np.testing.assert_array_equal(masked({"path": path, "values": [1, 3]}), np.isin(voxels, [1, 3]))
    np.testing.assert_array_equal(masked({"path": path, "range": [0, 2]}), voxels <= 2)
    np.testing.assert_array_equal(masked({"path": path, "values": [2], "invert": True}), voxels != 2)
    box = np.zeros(BOX.shape, bool)
    box[:1, 2:4, :2] = True
    both = masked({"path": path, "values": [4]}, {"box": "0:5,12:14,0:22"}, {"box": "100:200,0:9,0:9"})
    np.testing.assert_array_equal(both, (voxels == 4) | box)
    np.testing.assert_array_equal(masked({"path": path, "box": "0:5,12:14,0:22"}), (voxels > 0) & box)
    np.testing.assert_array_equal(masked({"box": "0:5,12:14,0:22", "invert": True}), ~box)


def test_ids_beyond_2_to_the_53_are_told_apart(tmp_path):
    ids = 720575940621039145 + np.arange(4 * 6 * 8, dtype=np.uint64).reshape(BOX.shape)
    path = write(tmp_path / "mask.h5", ids, BOX.start, SIZE)
    few, many = ids.ravel()[[0, 100]].tolist(), ids.ravel()[::2].tolist()
    np.testing.assert_array_equal(np.flatnonzero(masked({"path": path, "values": few})), [0, 100])
    np.testing.assert_array_equal(np.flatnonzero(masked({"path": path, "values": many})), np.arange(0, ids.size, 2))
    beyond = [-1, 2**63 + 2]
    np.testing.assert_array_equal(np.flatnonzero(masked({"path": path, "values": [few[1], *beyond]})), [100])


def test_a_mask_drawn_on_an_image_of_unknown_voxels_has_those_of_any_image(tmp_path, labels):
    _, voxels = labels
    path = write(tmp_path / "drawn.zarr", voxels, BOX.start, NO_SIZE)
    np.testing.assert_array_equal(masked({"path": path}), voxels > 0)


@pytest.mark.parametrize("factor", [(2, 4, 4), (1, 3, 2)])
def test_a_coarser_mask_is_read_at_the_nearest_voxel(tmp_path, factor):
    coarse = np.random.default_rng(2).integers(0, 2, (10, 9, 20)).astype(np.uint8)
    size = tuple(side * n for side, n in zip(SIZE, factor, strict=True))
    path = write(tmp_path / "coarse.h5", coarse, (0, 0, 0), size)
    fine = coarse.repeat(factor[0], 0).repeat(factor[1], 1).repeat(factor[2], 2)
    np.testing.assert_array_equal(masked({"path": path}), fine[BOX.slices()] > 0)


@pytest.mark.parametrize("invert", [False, True])
def test_a_voxel_is_masked_if_a_finer_mask_masks_its_centre(tmp_path, invert):
    """z has larger voxels in the mask."""
    fine = np.random.default_rng(2).integers(0, 2, (4, 48, 84)).astype(np.uint8)
    path = write(tmp_path / "fine.h5", fine, (0, 0, 0), (80.0, 10 / 3, 10 / 3))
    expected = fine.repeat(2, 0)[4:8, 31:48:3, 61:84:3] != invert
    np.testing.assert_array_equal(masked({"path": path, "invert": invert}, box=Box((4, 10, 20), (8, 16, 28))), expected)


def test_a_mask_has_to_cover_the_box(labels, tmp_path):
    path, _ = labels
    with pytest.raises(VolumeError, match="3:9,8:18,18:30,? .*4:8,10:19,20:28"):
        masked({"path": path}, box=Box((4, 10, 20), (8, 19, 28)))
    coarse = write(tmp_path / "coarse.h5", np.ones((2, 4, 6), np.uint8), (0, 0, 0), (80, 40, 40))
    with pytest.raises(VolumeError, match=r"0:4,0:16,0:24,? "):
        masked({"path": coarse})


def test_masked_truth_is_neither_body_nor_ignored(labels, tmp_path):
    path, voxels = labels
    bodies = np.full(BOX.shape, 7, np.uint64)
    bodies[0] = IGNORED
    truth = write(tmp_path / "truth.h5", bodies, BOX.start, SIZE)
    with open_masked_truth(truth, [Mask(path=path, values=(3,))]) as volume:
        np.testing.assert_array_equal(volume.read(), np.where((voxels == 3) | (bodies == IGNORED), 0, 7))


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("mask.h5:tissue", Mask(path="mask.h5:tissue")),
        ("-a#1.zarr#values=-1,3#invert", Mask(path="-a#1.zarr", values=(-1, 3), invert=True)),
        ("raw.h5:raw#range=0:2.5#box=-3:4,0:9,1:2", Mask(path="raw.h5:raw", range=(0, 2.5), box="-3:4,0:9,1:2")),
        ("#box=0:4,0:9,1:2", Mask(box="0:4,0:9,1:2")),
    ],
)
def test_masks_on_a_command_line_are_text(text, mask):
    assert Mask.model_validate(text) == mask == Mask.model_validate(str(mask))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "path: is missing, a mask needs the path of a volume or a box"),
        ({"values": [1]}, "path: is missing"),
        ({"path": "a", "values": [1], "range": [0, 1]}, "values and range: found both"),
        ({"box": "all"}, "box: all must have the form z0:z1,y0:y1,x0:x1"),
    ],
)
def test_a_mask_that_masks_nothing_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Mask(**values)


NM = (40.0, 12.0, 12.0)
PART = Box((1, -3, 4), (5, 12, 40))


@pytest.mark.parametrize("factors", [(1, 3, 3), (5, 1, 3), (1, 1 / 3, 1 / 2)])
def test_pieces_do_not_show(monkeypatch, factors):
    """A voxel is that of the other volume in which its centre lies, and 9 beyond it."""
    monkeypatch.setattr(masks, "READ_BYTES", 500)
    start, shape = (2, 0, 1), (20, 30, 90)
    voxels = np.random.default_rng(1).integers(0, 9, shape).astype(np.uint8)
    volume = ArrayVolume("fine", voxels, tuple(np.divide(NM, factors)), start)
    sizes, read = [], volume.read
    volume.read = lambda box: sizes.append(box.num_voxels) or read(box)
    found = masks.read_nearest(volume, PART, NM, outside=9)
    centres = np.moveaxis(np.indices(PART.shape), 0, -1) + PART.start + 0.5
    places = np.floor(centres * factors).astype(int) - start
    known = ((places >= 0) & (places < shape)).all(-1)
    assert 0 < known.mean() < 1 and len(sizes) > 1 and max(sizes) <= 500
    expected = np.full(PART.shape, 9, np.uint8)
    expected[known] = voxels[tuple(places[known].T)]
    np.testing.assert_array_equal(found, expected)
