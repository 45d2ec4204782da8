"""How each training volume is normalised, and the histogram of the grey levels that the network is trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

import numpy as np

from ffn.config import Normalize
from ffn.errors import ModelError, VolumeError
from ffn.model.grey_levels import HISTOGRAM_DTYPES, Histogram, count_levels, sample_blocks
from ffn.model.normalize import Normalisation, choose
from ffn.model.store import Model
from ffn.training.data.volumes import TrainingVolume
from ffn.training.parallel.process_group import ProcessGroup


def with_contrast(
    model: Model,
    volumes: Mapping[str, TrainingVolume],
    trained_on: Mapping[str, object],
    methods: Mapping[str, Normalize],
    group: ProcessGroup,
) -> Model:
    """Normalise every volume by its method; return the model with the histogram of those that are trained on.

    All processes call this together. Each reads a share of the sampled blocks.
    """
    seen: list[Histogram] = []
    for name, volume in volumes.items():
        method, found = methods.get(name, "training"), _histogram(volume, group)
        normalisation = group.together(partial(_chosen, name, method, found, model))
        volume.normalisation = normalisation
        if name in trained_on and found is not None:
            seen.append(normalisation.in_grey_levels(found, model.config))
    whole = Histogram.together(seen) if len(seen) == len(trained_on) else None
    return dataclasses.replace(model, histogram=whole)


def _histogram(volume: TrainingVolume, group: ProcessGroup) -> Histogram | None:
    """Return the histogram of a sample of a volume; None of one that is no integer image, or all masked."""
    if volume.image_dtype not in HISTOGRAM_DTYPES:
        return None
    counts = count_levels(np.empty(0, volume.image_dtype))
    for number, block in enumerate(sample_blocks(volume.box)):
        if number % group.size == group.rank:
            counts += count_levels(volume.read_grey_levels(block))
    total = group.sum(counts)
    return Histogram.of_counts(total) if total.any() else None


def _chosen(name: str, method: Normalize, found: Histogram | None, model: Model) -> Normalisation:
    if found is None and method in ("volume", "match"):
        raise VolumeError(
            f"{name}: normalize: {method} needs a histogram, expected uint8 or uint16 and voxels that are not masked. "
            "Ingest the image, or correct the masks"
        )
    try:
        return choose(method, found, model.config, model.histogram)
    except ModelError as error:
        raise ModelError(f"volumes.{name}.normalize: the initial model {error}") from None
