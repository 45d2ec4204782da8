"""Validation scores do not depend on the number of processes."""

import pytest

from ffn.config import ModelConfig
from ffn.training.config import TrainConfig
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.validation import Validation, make_validation_set

MODEL = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 2), image_mean=100, image_stddev=50)
TRAIN = TrainConfig(validation_examples=7, batch_size=2)


def forward(batch):
    """Stand-in for the network: bright voxels belong to the object, the loss is the mean grey level."""
    return batch.pom_logit + 4 * batch.image, batch.image.mean((1, 2, 3))


@pytest.mark.parametrize("size", [2, 3, 10])
def test_scores_are_the_same_for_any_number_of_processes(validation_boxes, run_processes, size):
    examples = make_validation_set(validation_boxes, MODEL, TRAIN, 1, ProcessGroup())

    def validate(group):
        row = Validation(examples, MODEL, TRAIN, group).run(forward, 30)
        assert row.pop("validation_seconds") > 0
        return row

    alone = validate(ProcessGroup())
    assert run_processes(size, validate) == [alone] * size
    assert alone["examples"] == 7 and alone["fovs"] > 7 and 0 < alone["f1"] < 1
    assert alone["step"] == 30
