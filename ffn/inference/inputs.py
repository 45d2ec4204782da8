"""Inputs of flood filling and agglomeration: an image, the network that runs on it, its grey levels, and masks."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

from ffn.config import FloodConfig, Mask, flooding_model
from ffn.geometry import ZYX
from ffn.inference.engine import chosen
from ffn.io.masks import mask_inputs
from ffn.io.open import identity
from ffn.machine.jax_device import keep_programs
from ffn.model.choice import Choice
from ffn.model.normalize import Normalisation, read_normalisation
from ffn.model.store import Model, load_model, weights_checksum
from ffn.options import add_machine_option, add_normalization_option, add_volume_option, masks_from


@dataclass(frozen=True)
class Network:
    """A model with the deltas of the options, run by an engine in a precision."""

    model: Model
    normalisation: Normalisation
    choice: Choice
    trained_deltas_zyx: ZYX  # of the model as it was stored
    padding: tuple[int, ...] = ()  # grey levels of the image that are no tissue, left out of seeds and objects


@dataclass(frozen=True)
class FloodInputs:
    """Image and network, and normalisation and masks of the volume.

    Parameters
    ----------
    image : str
        Raw image, uint8 or uint16.
    model : str
        Model folder.
    normalization : str, optional
        File of `ffn normalize`; default: mean and deviation of the model.
    masks : tuple of Mask
        Voxels that are never seeded, entered or segmented.
    machine : str, optional
        Folder with what ``auto`` takes in all jobs of the run, see `ffn.inference.engine.chosen`, and what JAX
        compiled for GPUs.
    """

    image: str
    model: str
    normalization: str | None = None
    masks: tuple[Mask, ...] = ()
    machine: str | None = None

    def network(self, config: FloodConfig) -> Network:
        """Load the model and choose engine and precision, which may take minutes."""
        model = load_model(self.model)
        flooding = replace(model, config=flooding_model(model.config, config))
        normalisation = read_normalisation(self.normalization, model.config)
        choice = chosen(flooding, config, self.machine)
        if choice.engine == "jax":
            keep_programs(self.machine)
        return Network(flooding, normalisation, choice, model.config.deltas_zyx)

    @property
    def known(self) -> dict[str, str]:
        """Masks, as provenance names them."""
        return mask_inputs(self.masks)

    def files(self) -> list[str]:
        """Return the volumes that are read."""
        return [self.image, *(mask.path for mask in self.masks if mask.path)]

    def about(self, network: Network, engine: str) -> dict[str, str]:
        """Return image and network, as provenance names them."""
        weights = weights_checksum(network.model.weights)
        return {"image": self.image, "weights": weights, "engine": engine, "grey_levels": str(network.normalisation)}

    def key(self, network: Network) -> dict[str, object]:
        """Return all that results depend on besides options and boxes."""
        key: dict[str, object] = {**self.about(network, f"{network.choice.engine} {network.choice.precision}")}
        del key["image"]  # its content counts, not its path
        key |= {"network": network.model.config.model_dump_json(), "own_deltas": network.trained_deltas_zyx}
        key |= {"padding": network.padding} if network.padding else {}
        return {**key, "volumes": list(map(identity, self.files())), **self.known}


@dataclass(frozen=True, kw_only=True)
class AgglomerateInputs(FloodInputs):
    """Inputs of `agglomerate`: also supervoxels, with the table ``overlaps``, that the image covers."""

    segmentation: str

    def files(self) -> list[str]:
        """Return the volumes that are read."""
        return [self.segmentation, *super().files()]


@dataclass(frozen=True)
class SegmentInputs(FloodInputs):
    """Inputs of `segment`.

    Parameters
    ----------
    init_segmentation : str, optional
        Labels of any resolution that are segments from the start.
    """

    init_segmentation: str | None = None

    @property
    def known(self) -> dict[str, str]:
        """Masks and given segments, as provenance names them."""
        return super().known | ({"init_segmentation": self.init_segmentation} if self.init_segmentation else {})

    def files(self) -> list[str]:
        """Return the volumes that are read."""
        return [*super().files(), *filter(None, [self.init_segmentation])]


def add_flood_inputs(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of `FloodInputs`, but for ``--masks``."""
    add_volume_option(parser, "--image", "raw image")
    parser.add_argument("--model", required=True, metavar="DIR", help="trained or imported model")
    add_machine_option(parser)
    add_normalization_option(parser)


def flood_inputs(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of `FloodInputs` from parsed options."""
    names = ("image", "model", "normalization", "machine")
    return {**{name: getattr(arguments, name) for name in names}, "masks": masks_from(arguments)}
