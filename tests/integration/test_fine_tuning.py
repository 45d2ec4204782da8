"""Fine-tuning the published weights with the defaults, on FIB-25 and on a copy of another contrast."""

import numpy as np
import pytest

from ffn.cli import main
from ffn.geometry import Box
from ffn.io.create import create_volume
from ffn.io.open import open_volume
from ffn.io.volume import Placement
from ffn.training.monitoring.metrics import read_metrics

BOX = Box.parse("0:102,0:110,0:110")
TRAIN_BOX, VALIDATE_BOX = "0:49,0:110,0:110", "73:78,0:110,0:110"  # with room for patches of 49 voxels
STEPS = 3  # the rate is still rising; at the default of new networks, as many ruin the weights


def write(spec, voxels):
    with create_volume(spec, voxels.dtype, Placement(BOX, (10.0, 10.0, 10.0))) as writer:
        writer.write(BOX, voxels)


def other_contrast(image):
    return np.round(255 * (np.clip(1.6 * image + 10.0, 0, 255) / 255) ** 0.8).astype(np.uint8)


@pytest.fixture(scope="module")
def records(shared_fib25, tmp_path_factory):
    """Folder with labels, and records of a part of them."""
    folder = tmp_path_factory.mktemp("fib25")
    with open_volume(f"{shared_fib25}/labels_z000-170.h5:stack") as labels:
        write(f"{folder}/labels.h5:labels", labels.read(BOX).astype(np.uint64))
    for command in (
        f"partition --labels {folder}/labels.h5:labels --box {TRAIN_BOX} --out {folder}/partitions.h5:partitions",
        f"coordinates --partitions {folder}/partitions.h5:partitions --out {folder}/coordinates.h5",
        f"records --coordinates a={folder}/coordinates.h5 --num-shards 1 --max-records 500 --out {folder}/records",
    ):
        assert main(command.split()) == 0
    return folder


@pytest.mark.parametrize(
    "contrast", [pytest.param(None, id="same", marks=pytest.mark.slow), pytest.param(other_contrast, id="another")]
)
def test_fine_tuning_with_the_defaults_keeps_what_the_weights_can(
    contrast, shared_fib25, shared_checkpoint, records, tmp_path
):
    with open_volume(f"{shared_fib25}/raw") as image:
        voxels = image.read(BOX)
    write(f"{tmp_path}/raw.h5:raw", contrast(voxels) if contrast else voxels)
    volume = f"a={tmp_path}/raw.h5:raw,{records}/labels.h5:labels"
    assert main(f"import-checkpoint {shared_checkpoint} --out {tmp_path}/published".split()) == 0
    command = f"train --records {records}/records --volume {volume} --validate {volume},{VALIDATE_BOX} --num-workers 1 "
    command += f"--init {tmp_path}/published --max-steps {STEPS} --validation-examples 2 --out {tmp_path}/model"
    assert main(command.split()) == 0
    start, end = read_metrics(tmp_path / "model/validation.csv")
    assert (start["step"], end["step"]) == (0, STEPS)
    assert start["loss"] < 0.8  # with FIB-25's mean and standard deviation, the other contrast has above 1
    assert end["f1"] > 0.98 * start["f1"]  # and the model gets the better weights of the two
