"""The picture of a training example: four columns, three planes, a frame around the FOV."""

import numpy as np

from ffn.config import ModelConfig
from ffn.training.config import TrainConfig
from ffn.training.data.examples import Example
from ffn.training.monitoring.pictures import CELL_PIXELS, GAP_PIXELS, OUTLINE, walk_picture
from ffn.training.walk import Walk

MODEL = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 2))


def test_a_picture_shows_three_planes_of_all_arrays_and_frames_the_fov():
    shape = (5, 7, 11)
    labels = np.full(shape, 0.05, np.float32)
    labels[:, :, 6:] = 0.95
    image = np.zeros(shape, np.float32)
    image[0, 0, 0] = np.nan  # must not fail
    weight = np.ones(shape, np.float32)
    walk = Walk(Example(image, labels, weight, ((0, 0, 2),)), MODEL, TrainConfig(batch_size=1))
    before = walk.canvas_logit.copy()
    pixels = walk_picture(walk, walk.window)
    zoom = CELL_PIXELS // 11
    assert pixels.dtype == np.uint8
    assert pixels.shape == ((7 + 5 + 5) * zoom + 3 * GAP_PIXELS, 4 * (11 * zoom + GAP_PIXELS), 3)
    column = 11 * zoom + GAP_PIXELS
    truth = pixels[: 7 * zoom, column : column + 11 * zoom]
    assert truth[2, 2].max() < 30 and truth[2, -2].min() > 230
    outlined = np.argwhere((pixels[: 7 * zoom, : 11 * zoom] == OUTLINE).all(-1))
    assert outlined.min(0).tolist() == [1 * zoom, 2 * zoom]  # FOV of 5 x 7 in the middle of 7 x 11
    assert outlined.max(0).tolist() == [6 * zoom - 1, 9 * zoom - 1]
    np.testing.assert_array_equal(walk.canvas_logit, before)
