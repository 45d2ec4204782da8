"""What `ffn segment` decides without a network; tests/stages/test_segment.py runs the stage."""

import pytest

from ffn.config import ModelConfig, SegmentConfig
from ffn.errors import VolumeError
from ffn.inference.segment import RESERVED, _fingerprint, segment
from ffn.model.store import Model

MODEL = Model(ModelConfig(depth=1, features=2), {}, {})
CHANGED = {
    "init_activation": 0.97,
    "seed_policy": "grid",
    "second_pass": True,
    "mask_boxes": ("0:1,0:1,0:1",),
    "max_fovs": 9,
    "batch_size": 2,
}


def fingerprint(model=MODEL, inputs=None, **options):
    return _fingerprint(SegmentConfig(**options), model, inputs or {"voxels": "abc"})


@pytest.mark.parametrize("dataset", RESERVED)
def test_the_names_of_other_results_are_refused(dataset):
    with pytest.raises(VolumeError, match=f"'{dataset}' is another dataset of this file, expected a free name"):
        segment("raw.h5:raw", "model", f"seg.h5:{dataset}", SegmentConfig())
    with pytest.raises(VolumeError, match="seg.h5: expected FILE.h5:DATASET"):
        segment("raw.h5:raw", "model", "seg.h5", SegmentConfig())


@pytest.mark.parametrize("name", CHANGED)
def test_a_checkpoint_of_other_options_is_another_job(name):
    assert fingerprint() != fingerprint(**{name: CHANGED[name]})


def test_a_checkpoint_of_another_model_or_image_is_another_job():
    other = Model(MODEL.config.model_copy(update={"deltas_zyx": (8, 8, 7)}), {}, {})
    assert fingerprint() != fingerprint(other)
    assert fingerprint() != fingerprint(inputs={"voxels": "abd"})


def test_the_interval_of_checkpoints_does_not_make_another_job():
    assert fingerprint() == fingerprint(checkpoint_seconds=1.0)
