"""Configurations of small runs."""

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.geometry import Box
from ffn.io.volume import Placement
from ffn.model.network import weight_shapes
from ffn.model.store import Model
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.places import check_sources
from ffn.workflow.run import load_run

from ...volumes import create_volume

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
RUN_SHAPE = [64, 56, 72]
RUN = {
    "run": "small",
    "volumes": {
        "first": {
            "synthetic": {"shape_zyx": RUN_SHAPE},
            "train_box": "0:40,0:56,0:72",
            "evaluate_box": "40:64,0:56,0:72",
        },
        "second": {"synthetic": {"shape_zyx": RUN_SHAPE}, "train_box": "none", "evaluate_box": "none"},
    },
    "model": {"depth": 2, "features": 8, "fov_size_zyx": [9, 11, 13], "deltas_zyx": [2, 3, 3]},
    "train": {"permutable_axes": []},
    "subvolumes": {"size_zyx": [64, 56, 48], "overlap_zyx": [14, 14, 14]},
}
UNTRAINED = {"max_steps": 0, "permutable_axes": []}
SHAPE = (64, 48, 80)  # of PHANTOM


class Wildcards(dict):
    """Wildcards as Snakemake gives them: attributes that can also be listed."""

    __getattr__ = dict.__getitem__


def pipeline(gpus=0, nodes=1, **sections):
    run = load_run({**RUN, **sections})
    return Pipeline(run, check_sources(run), gpus, nodes)


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


def check(config):
    return check_sources(load_run(config))


def refuse(config, named):
    with pytest.raises(ConfigError, match=named) as error:
        check(config)
    assert "\n" not in str(error.value)


def with_phantom(**volume):
    return {**GOOD, "volumes": {"phantom": {**PHANTOM, **volume}}}


def write(path, dtype, box, size=10):
    """Create a store without voxels."""
    box = Box.from_shape(box) if isinstance(box, tuple) else box
    with create_volume(str(path), dtype, Placement(box, (size,) * 3)):
        return str(path)


def random_model(**changes):
    config = ModelConfig(**{**SMALL, **changes}, image_mean=0, image_stddev=1)
    return Model(config, {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(config).items()}, {})
