import numpy as np

from ffn.synthetic.config import SynthConfig
from ffn.synthetic.neurites import Path
from ffn.synthetic.territories import connected_pieces, fill_territories


def test_parts_get_their_own_ids_and_small_ones_that_of_a_neighbour() -> None:
    territories = np.full((3, 4, 30), 7)
    territories[..., 10:20] = 2
    territories[1, 1, 25] = 9
    pieces = connected_pieces(territories, min_voxels=5)
    assert np.unique(pieces).tolist() == [1, 2, 3]
    assert pieces[1, 1, 25] == pieces[0, 0, 29] != pieces[0, 0, 0]


def test_small_parts_stay_if_all_are_small() -> None:
    territories = np.arange(1, 9).reshape(2, 2, 2)
    assert np.unique(connected_pieces(territories, min_voxels=100)).tolist() == list(range(1, 9))


def test_a_voxel_belongs_to_the_nearest_tube() -> None:
    """Two parallel tubes along x: the thick one reaches beyond the middle between the axes."""
    along_x = np.arange(-200.0, 900.0, 20.0)
    tubes = [
        Path(number, np.stack([np.full_like(along_x, 160.0), np.full_like(along_x, y), along_x], axis=1), radii)
        for number, y, radii in ((1, 200.0, np.full_like(along_x, 120.0)), (2, 500.0, np.full_like(along_x, 40.0)))
    ]
    config = SynthConfig(shape_zyx=(32, 64, 64), undulation_nm=0.0)
    labels = fill_territories(tubes, config, np.random.default_rng(0))
    assert labels.dtype == np.uint64
    border = [int(np.flatnonzero(np.diff(row))[0]) for row in labels[16, :, ::8].T.astype(int)]
    # d1² - r1² = d2² - r2² at y = 371 nm
    assert set(border) <= {36, 37} and np.unique(labels).tolist() == [1, 2]
