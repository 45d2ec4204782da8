"""Fine-tuning the published weights with the workflow's defaults, on a copy of FIB-25 of another contrast."""

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.io.volume import Placement
from ffn.model.store import load_model
from ffn.training.metrics import read_metrics

from ..small_run import Workflow, shown
from ..volumes import write_volume

BOX = Box.parse("0:102,0:110,0:110")  # with room for the validation box that is cut from it
# All else is as by default. Few examples, because each is a walk of up to 27 FOVs; a precision that every machine has.
STEPS = 4
TRAIN = {"max_steps": STEPS, "num_workers": 1, "precision": "float32", "validation_examples": 4}


@pytest.mark.slow
def test_fine_tuning_with_the_defaults_keeps_what_the_weights_can(shared_fib25, shared_checkpoint, tmp_path):
    with open_volume(f"{shared_fib25}/raw") as raw:
        box, grey = raw.box, np.clip(1.6 * raw.read(raw.box) + 10.0, 0, 255)
    voxels = np.round(255 * (grey / 255) ** 0.8).astype(np.uint8)  # another contrast
    image = write_volume(f"{tmp_path}/raw.h5:raw", voxels, Placement(box, (10.0, 10.0, 10.0)))
    volume = {
        "image": image,
        "image_box": str(BOX),
        "labels": f"{shared_fib25}/labels_z000-170.h5:stack",
        "labels_offset_zyx": [0, 0, 0],
        "voxel_size_zyx_nm": [10, 10, 10],
        "segment_box": "none",
    }
    config = {"run": "tuned", "init": str(shared_checkpoint), "volumes": {"fib25": volume}, "train": TRAIN}
    workflow = Workflow(tmp_path, config)
    shown(workflow.fork("train_all"))
    rows = {row["step"]: row for row in read_metrics(workflow.results / "model/validation.csv")}
    start, end = rows[0], rows[STEPS]
    taken = rows[int(load_model(workflow.results / "model").provenance["inputs"]["best_step"])]
    assert start["loss"] < 0.8  # with FIB-25's mean and standard deviation, it is above 1
    assert taken["f1"] >= start["f1"]
    assert end["f1"] > 0.9 * start["f1"]  # 0.0003 instead of 0.17 at the rate of new networks, though its loss falls
