"""Published training recipes: what every option that decides a result is in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRESETS: dict[str, Mapping[str, Any]] = {
    # Dong et al. 2019: Adam, one FOV per worker, no schedule; the rate of one worker is read off Fig. 4, and beyond 16
    # workers it grows with the square root. Their code builds on google/ffn and leaves the rest as there: clipping, ε,
    # walks, augmentation.
    "dong2019": {
        "batch_size": 1,
        "optimizer": "adam",
        "learning_rate": 1e-5,
        "scaling_rule": "sqrt",
        "warmup_steps": 0,
        "schedule": "constant",
        "weight_decay": 0.0,
        "clip_entries": 0.7,
        "adam_epsilon": 1e-8,
        "ema_decay": None,
        "precision": "float32",
        "compression": "none",
        "fov_policy": "fixed",
        "fov_moves": 1,
        "shuffle_moves": True,
        "unlabelled_weight": 1.0,
        "permutable_axes": ("y", "x"),
        "contrast_jitter": 0.0,
        "brightness_jitter": 0.0,
        "gamma_jitter": 0.0,
        "missing_slice_rate": 0.0,
        "misaligned_slice_rate": 0.0,
        "blur_rate": 0.0,
        "use_best": False,
    }
}
