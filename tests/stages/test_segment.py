"""`ffn segment` on a box: everything it writes is in full-volume coordinates and says how it was made."""

import h5py
import numpy as np
import pytest

from ffn.cli import main
from ffn.config import ModelConfig
from ffn.geometry import Box
from ffn.model.network import weight_shapes
from ffn.model.store import Model, save_model
from ffn.volume import Placement, create_volume, open_volume

IMAGE = Box((100, 20, 3), (140, 60, 63))
BOX = Box((104, 24, 7), (136, 58, 60))


@pytest.fixture
def scene(tmp_path):
    """Two bright tubes, and a network that adds the image to the POM: what is bright grows, what is dark does not."""
    image = np.full(IMAGE.shape, 60, np.uint8)
    for start in (8, 22):
        for depth in range(5):  # brightest on the axis, where the FOV then stays
            inside = slice(start + depth, start + 10 - depth)
            image[inside, inside] = 180 + 15 * depth
    with create_volume(f"{tmp_path}/raw.h5:raw", np.uint8, Placement(IMAGE, (10, 10, 10))) as writer:
        writer.write(IMAGE, image)
    config = ModelConfig(
        depth=1, features=2, fov_size_zyx=(5, 5, 7), deltas_zyx=(1, 1, 2), image_mean=130, image_stddev=10
    )
    weights = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(config).items()}
    weights["conv0_a/weights"][1, 1, 1, 0] = [1, -1]  # positive and negative part of the image
    weights["conv0_b/weights"][1, 1, 1] = np.eye(2)
    weights["conv_lom/weights"][0, 0, 0, :, 0] = [1, -1]
    save_model(tmp_path / "model", Model(config, weights, {}))
    return tmp_path


def segment(folder, *options, name="seg"):
    arguments = ["--image", f"{folder}/raw.h5:raw", "--model", f"{folder}/model", "--box", str(BOX)]
    out = f"{folder}/{name}.h5:segmentation"
    assert main(["segment", *arguments, "--min-segment-size", "50", *options, "--out", out]) == 0
    return folder / f"{name}.h5"


@pytest.mark.parametrize("engine", ["tensorflow", "openvino"])
def test_tubes_are_segmented_in_full_volume_coordinates(scene, engine):
    path = segment(scene, "--engine", engine, "--precision", "float32")
    with open_volume(f"{path}:segmentation") as volume:
        assert volume.box == BOX
        labels = volume.read()
        record = volume.provenance
    inside = labels[5:13, 5:13, 10:-10]
    assert (inside > 0).mean() > 0.5
    first = set(np.unique(inside).tolist()) - {0}
    second = set(np.unique(labels[19:27, 19:27]).tolist()) - {0}
    assert len(first) == len(second) == 1 and first != second
    assert record["inputs"]["engine"] == f"{engine} float32"
    with h5py.File(path) as file:
        for segment_id, *seed, num_fovs in file["origins"][()]:
            assert labels[tuple(np.subtract(seed, BOX.start))] == segment_id
            assert num_fovs > 0
        assert ((file["probability"][()] > 0) == (labels > 0)).all()


def test_reversed_order_starts_from_the_other_end(scene):
    forward, backward = segment(scene), segment(scene, "--seed-order", "reversed", name="reversed")
    with h5py.File(forward) as one, h5py.File(backward) as other:
        assert one["origins"][0, 1] < other["origins"][0, 1]


def test_reruns_are_byte_identical(scene):
    assert segment(scene).read_bytes() == segment(scene, name="again").read_bytes()
