"""Where the networks of a run come from: initial weights, training, and the choice among checkpoints."""

from __future__ import annotations

import glob
import os
from functools import cached_property
from pathlib import Path
from typing import Any

from ffn import options
from ffn.geometry import VoxelSize
from ffn.model.store import DESCRIPTION, load_description
from ffn.model.tissue import Tissue
from ffn.training.checkpoint import MANIFEST, architecture_of, is_checkpoint
from ffn.training.config import fine_tuning_defaults
from ffn.workflow.paths import RunPaths
from ffn.workflow.run import RunConfig


class Models:
    """Model folders of a run, their options and the checkpoints that compete."""

    def __init__(self, run: RunConfig, paths: RunPaths, is_validated: bool) -> None:
        self.run = run
        self.paths = paths
        self._is_validated = is_validated

    @cached_property
    def imported(self) -> list[str]:
        """The checkpoint, ours or a published one, or model of another FOV that is first turned into a model folder."""
        init = self.run.init
        is_resized = not self.run.train.max_steps and bool(self.resized)
        return [init] if init and (is_checkpoint(init) or not os.path.isdir(init) or is_resized) else []

    @cached_property
    def resized(self) -> list[str]:
        """How FOV and deltas differ from those that initial weights of ours were trained with."""
        init, model = self.run.init, self.run.model
        if not init or not os.path.isdir(init):
            return []
        own, names = architecture_of(init), ("fov_size_zyx", "deltas_zyx")
        pairs = [(name, getattr(model, name), getattr(own, name)) for name in names]
        return [
            f"model.{name}: {here}, but init {init} was trained with {its}" for name, here, its in pairs if here != its
        ]

    @property
    def imported_files(self) -> list[str]:
        """The files of that checkpoint whose change repeats the import: of ours the manifest, else index and data."""
        if not self.imported:
            return []
        init = str(Path(self.imported[0]))
        if os.path.isdir(init):
            return [f"{init}/{MANIFEST if is_checkpoint(init) else DESCRIPTION}"]
        return [f"{init}.index", *sorted(glob.glob(f"{glob.escape(init)}.data-*"))]

    @property
    def initial(self) -> str | None:
        """Model folder that training starts from."""
        if self.imported:
            return self.paths.folder("import-checkpoint")
        return self.run.init.rstrip("/") if self.run.init else None

    @property
    def initial_files(self) -> list[str]:
        """The file that a model folder cannot lack, in the folder that training starts from."""
        return [str(Path(self.initial, "model.yaml"))] if self.initial else []

    @property
    def flags(self) -> str:
        """Options of the network for `ffn train`; initial weights bring those that the configuration does not name."""
        model = self.run.model
        if not self.initial:
            return options.flags(model)
        names = type(model).model_fields.keys()
        return options.flags(model, skip=tuple(names - self.options), defaults=dict.fromkeys(names))

    @property
    def options(self) -> set[str]:
        """Names of the options of the network that training gets from the configuration, not from initial weights."""
        model = self.run.model
        if not self.initial:
            return set(type(model).model_fields)
        return model.model_fields_set | {"fov_size_zyx", "deltas_zyx"}  # which sampling and tiling follow

    @property
    def train_defaults(self) -> dict[str, Any]:
        """Defaults of `ffn train` that are not those of `TrainConfig`, as its command line has them."""
        return fine_tuning_defaults(self.run.train, self._is_validated) if self.initial else {}

    @cached_property
    def costed(self) -> RunConfig:
        """The configuration to estimate memory and time from: initial weights of ours bring depth and features.

        Those of a published checkpoint are what the configuration says.
        """
        run, init = self.run, self.run.init
        if not init or not os.path.isdir(init):
            return run
        own = architecture_of(init)
        brought = {"depth": own.depth, "features": own.features}
        return run.model_copy(update={"model": run.model.model_copy(update=brought)})

    @property
    def trained(self) -> str:
        """Model folder that training writes; without training, the initial one."""
        folder = self.paths.folder("train")
        return folder if self.run.train.max_steps > 0 else self.initial or folder

    def trained_on(self, sizes: set[VoxelSize]) -> Tissue | None:
        """Return the tissue of the network that segments: voxel sizes of training volumes, else what `init` records."""
        init = self.run.init
        if sizes:
            return Tissue(tuple(sorted(sizes)))
        return load_description(init).trained_on if init and Path(init, DESCRIPTION).is_file() else None

    @property
    def used(self) -> str:
        """Model folder that segments."""
        return self.paths.folder("select") if self.steps else self.trained

    @cached_property
    def steps(self) -> list[str]:
        """Checkpoints that `select` chooses from."""
        return [f"{step:08d}" for step in self.run.selectable_steps]
