"""Configurations of small runs."""

import pytest

from ffn.errors import ConfigError
from ffn.workflow.run import load_run

PHANTOM = {"synthetic": {"shape_zyx": [64, 48, 80]}}
VALIDATED = {**PHANTOM, "train_box": "0:40,0:48,0:80", "validate_box": "40:64,0:48,0:80"}
SMALL = {"fov_size_zyx": [9, 11, 13], "deltas_zyx": [2, 3, 3], "depth": 2, "features": 4}
GOOD = {
    "volumes": {"phantom": PHANTOM},
    "model": SMALL,
    "train": {"permutable_axes": ["y"]},
    "subvolumes": {"size_zyx": [40, 40, 40], "overlap_zyx": [16, 16, 16]},
}
SELECTING = {
    **GOOD,
    "volumes": {"phantom": {**PHANTOM, "train_box": "0:30,0:48,0:80", "evaluate_box": "44:64,0:48,0:80"}},
    "train": {"permutable_axes": ["y"], "max_steps": 110, "checkpoint_steps": 25, "keep_checkpoints": 3},
    "select": {"checkpoints": 2, "box": "30:44,0:48,0:80"},
}


def changed(**sections):
    """GOOD with some sections updated."""
    merged = {key: dict(value) for key, value in GOOD.items()}
    for name, value in sections.items():
        merged[name] = {**merged.get(name, {}), **value} if isinstance(value, dict) and value else value
    return merged


def require_one_line(change, named):
    with pytest.raises(ConfigError, match=named) as error:
        load_run(changed(**change))
    assert "\n" not in str(error.value)
