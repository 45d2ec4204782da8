"""The common part of stages: their options, the volumes that they read, and all that their results depend on."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ffn.config import Mask, Section
from ffn.io.blocks import BlockWork, Job, add_job_options, job_of, map_blocks
from ffn.io.masks import Masks, identities, mask_inputs, open_masks
from ffn.io.open import open_segmentation, open_volume
from ffn.io.volume import Placement, Volume, require_other_file, voxel_size_of
from ffn.options import add_masks_option, add_options, add_store_option, add_volume_option, from_arguments, masks_from
from ffn.provenance import fingerprint, provenance

C = TypeVar("C", bound=Section)


def add_stage_options(
    parser: argparse.ArgumentParser,
    config: type[Section],
    volumes: Mapping[str, str],
    out: str,
    steps: Sequence[str] = (),
) -> None:
    """Give `parser` the options of a stage that writes a volume: inputs by name, ``--out``, masks, jobs and section."""
    for name, text in volumes.items():
        add_volume_option(parser, name, text)
    add_store_option(parser, "--out", out)
    add_masks_option(parser)
    add_job_options(parser, steps)
    add_options(parser, config)


def stage_options(arguments: argparse.Namespace, config: type[C]) -> tuple[C, tuple[Mask, ...], Job]:
    """Return section, masks and job of the options of `add_stage_options`."""
    return from_arguments(config, arguments), masks_from(arguments), job_of(arguments)


class Inputs(contextlib.ExitStack):
    """The inputs of a stage: opened when they are asked for, closed at the end of the ``with`` block.

    Parameters
    ----------
    stage : str
        Name of the stage.
    config : Section
        Its options.
    out : str
        What it writes.
    masks : tuple of Mask
        Voxels that are left out.
    **specs : str
        Volumes that it reads, by their names in provenance.

    Raises
    ------
    VolumeError
        If `out` is one of them.
    """

    def __init__(self, stage: str, config: Section, out: str, masks: tuple[Mask, ...] = (), **specs: str) -> None:
        super().__init__()
        require_other_file(out, *specs.values(), *(mask.path for mask in masks if mask.path))
        self._stage, self._config, self._out, self._masks, self._specs = stage, config, out, masks, specs

    def segmentation(self, name: str) -> Volume:
        """Open labels, in which negative ids are 0."""
        return self.enter_context(open_segmentation(self._specs[name]))

    def volume(self, name: str) -> Volume:
        """Open a volume."""
        return self.enter_context(open_volume(self._specs[name]))

    def masks(self, of: Volume) -> Masks:
        """Open the masks of a volume."""
        return self.enter_context(open_masks(self._masks, of.voxel_size_zyx_nm))

    def key(self, **more: object) -> dict[str, Any]:
        """Return all that the result depends on."""
        return fingerprint(self._stage, self._config, **identities(self._specs, self._masks), **more)

    def provenance(self, **more: object) -> dict[str, Any]:
        """Return the provenance that is recorded in the result."""
        return provenance(self._stage, self._config, **self._specs, **mask_inputs(self._masks), **more)

    def map(self, like: Volume, dtypes: Mapping[str, np.dtype | type], work: BlockWork, job: Job) -> None:
        """Write volumes in the place of another one, block by block, see `map_blocks`."""
        placement = Placement(like.box, voxel_size_of(like), self.provenance())
        map_blocks(self._out, dtypes, placement, work, self.key(), job)
