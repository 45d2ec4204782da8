"""Stage `normalize`: decide once for a volume how its grey levels become those that the network knows."""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ffn.config import ImageConfig, ModelConfig, Normalize
from ffn.errors import ModelError
from ffn.io.atomic import unreadable, write_text
from ffn.io.masks import mask_inputs
from ffn.model.store import DESCRIPTION, load_description
from ffn.model.tissue import HISTOGRAM_DTYPES, Histogram, distance, survey_of
from ffn.options import add_options, add_volume_option, from_arguments
from ffn.provenance import provenance

log = logging.getLogger(__name__)

# FIB-25: its slices are up to 0.33 from the whole, and its halves 0.13 from each other; the whole is 0.85 from itself
# with gamma 0.7, 1.20 equalised, 2.40 as image × 1.6 + 10. Parts of 64³ voxels differ as much as 0.72 from the whole.
FAR = 0.5


@dataclass(frozen=True)
class Normalisation:
    """How grey levels become the input of the network: (level - mean) / stddev, after a curve if there is one.

    The curve has grey levels, ascending, and those that take their place; linear in between.
    """

    mean: float
    stddev: float
    curve: tuple[np.ndarray, np.ndarray] | None = None

    @classmethod
    def of_model(cls, config: ModelConfig) -> Normalisation:
        """Return that of a model's training volumes."""
        mean, stddev = config.image_mean, config.image_stddev
        if mean is None or stddev is None:
            found = f"model.image_mean, model.image_stddev: {mean}, {stddev}"
            raise ModelError(f"{found}, expected two numbers. Set them in {DESCRIPTION}")
        return cls(mean, stddev)

    def __str__(self) -> str:
        """Return all that the result depends on, for the provenance."""
        text = f"{self.mean!r} ± {self.stddev!r}"
        if self.curve is None:
            return text
        checksum = hashlib.sha256(np.array(self.curve).tobytes()).hexdigest()
        return f"{text}; matched in {len(self.curve[0])} levels, {checksum}"

    def apply(self, raw: np.ndarray) -> np.ndarray:
        """Return the network's input for grey levels of any real type, as float32."""
        if raw.dtype in HISTOGRAM_DTYPES and raw.size > (num_levels := np.iinfo(raw.dtype).max + 1):
            return self.apply(np.arange(num_levels, dtype=raw.dtype))[raw]  # six times as fast
        grey = raw if self.curve is None else np.interp(raw, *self.curve)
        seen = np.subtract(grey, np.float32(self.mean), dtype=np.float32)
        seen /= np.float32(self.stddev)
        return seen

    def in_grey_levels(self, found: Histogram, model: ModelConfig) -> Histogram:
        """Return the normalised histogram of a volume, in the grey levels of the model's training volumes."""
        assert model.image_mean is not None and model.image_stddev is not None
        if self == Normalisation(model.image_mean, model.image_stddev):
            return found  # without rounding
        seen = self.apply(found.levels).astype(np.float64)
        return Histogram(seen * model.image_stddev + model.image_mean, found.counts)

    def as_json(self) -> dict[str, Any]:
        """Return plain data, which `from_json` reads."""
        curve = None if self.curve is None else [axis.tolist() for axis in self.curve]
        return {"mean": self.mean, "stddev": self.stddev, "curve": curve}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Normalisation:
        """Return the normalisation that `as_json` wrote."""
        curve = values["curve"] and (np.array(values["curve"][0]), np.array(values["curve"][1]))
        return cls(float(values["mean"]), float(values["stddev"]), curve)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Decide how the grey levels of a volume become those that the network knows, and compare the two.

    'ffn segment' and 'ffn agglomerate' read the result, so that all jobs of a volume see the same image.

    example:
      ffn normalize --image raw.h5:raw --model model/ --normalize match --out normalization.json
    """
    add_volume_option(parser, "--image", "raw image")
    parser.add_argument("--model", required=True, metavar="MODEL_DIR", help="trained or imported model")
    parser.add_argument("--out", required=True, metavar="FILE.json", help="normalisation to write")
    add_options(parser, ImageConfig, skip=("init_segmentation",))


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    normalize(arguments.image, arguments.model, arguments.out, from_arguments(ImageConfig, arguments))


def normalize(image_spec: str, model_folder: str, out: str, how: ImageConfig) -> None:
    """Write the normalisation of a volume as JSON, and warn if the network was trained on something else.

    The statistics are those of at most 125 blocks, the same ones every time. The file has ``normalize`` (the method),
    ``mean``, ``stddev`` and ``curve`` (see `Normalisation`), ``volume`` and ``trained_on`` (``mean``, ``stddev``),
    ``distance`` of the two and ``seen_distance`` after normalisation (see `ffn.model.tissue.distance`),
    ``warning``, null if there is none, and ``padding``, where grey levels fill regions and do not count.

    Raises
    ------
    VolumeError
        If the image cannot be read, has another type, or is blank.
    ModelError
        If the model is damaged, or has no histogram for a match.
    """
    described = load_description(model_folder)
    model, reference = described.config, described.histogram
    seen = survey_of(image_spec, how.masks)
    method, found = how.normalize, seen.of_several_levels(image_spec)
    try:
        normalisation = choose(method, found, model, reference)
    except ModelError as error:
        raise ModelError(f"{model_folder}: {error}") from None
    compared = compare(normalisation, found, model, reference)
    warnings = [complaint(method, compared), *seen.complaints(image_spec, described.trained_on)]
    warning = ". ".join(filter(None, warnings)) or None
    if warning:
        log.warning("%s: %s", image_spec, warning)
    inputs = {"image": image_spec, "model": model_folder, "normalize": method, **mask_inputs(how.masks)}
    record = {"normalize": str(method), **normalisation.as_json(), **compared, "warning": warning}
    if seen.padding:
        record["padding"] = list(seen.padding)
    write_text(out, json.dumps(record | {"provenance": provenance("normalize", None, **inputs)}) + "\n")


def read_normalisation(path: str | None, model: ModelConfig) -> Normalisation:
    """Return the normalisation that `normalize` wrote, or without a file that of the model."""
    if path is None:
        return Normalisation.of_model(model)
    with unreadable(path, "a file of 'ffn normalize'", ModelError):
        normalisation = Normalisation.from_json(json.loads(Path(path).read_text()))
    log.info("%s: grey levels %s", path, normalisation)
    return normalisation


def choose(
    method: Normalize, found: Histogram | None, model: ModelConfig, reference: Histogram | None
) -> Normalisation:
    """Return the normalisation of a volume with the histogram `found`, needed only by ``volume`` and ``match``."""
    trained = Normalisation.of_model(model)
    if method == "training":
        return trained
    assert found is not None
    if method == "volume":
        return Normalisation(found.mean, found.stddev)
    if reference is None:
        missing = "does not record the histogram of its training volumes"
        raise ModelError(f"{missing}, match needs it. Take normalize: volume")
    bins = found.coarse()
    return Normalisation(trained.mean, trained.stddev, (bins.levels, reference.at(bins.ranks)))


def compare(
    normalisation: Normalisation, found: Histogram, model: ModelConfig, reference: Histogram | None
) -> dict[str, Any]:
    """Compare a volume with the training volumes of the network, before and after normalisation.

    Without a histogram, only mean and deviation of the model are known, and the distance is at least that much.
    """
    trained = Normalisation.of_model(model)
    seen = normalisation.in_grey_levels(found, model)
    known = (trained.mean, trained.stddev) if reference is None else (reference.mean, reference.stddev)

    def away(levels: Histogram) -> float:
        if reference is not None:
            return distance(levels, reference)
        return float(np.hypot(levels.mean - known[0], levels.stddev - known[1])) / known[1]

    return {
        "volume": {"mean": found.mean, "stddev": found.stddev},
        "trained_on": {"mean": known[0], "stddev": known[1]},
        "distance": away(found),
        "seen_distance": away(seen),
    }


def complaint(method: Normalize, compared: Mapping[str, Any]) -> str | None:
    """Return a warning if the network sees grey levels that it was not trained on, with both figures and a remedy."""
    if compared["seen_distance"] <= FAR:
        return None
    volume, trained = (
        f"{compared[name]['mean']:.1f} ± {compared[name]['stddev']:.1f}" for name in ("volume", "trained_on")
    )
    remedy = "match" if method != "match" else "volume"
    return (
        f"grey levels are {volume}, the network was trained on {trained}; with normalize: {method} it sees them "
        f"{compared['seen_distance']:.2f} deviations away, above {FAR}. Set normalize: {remedy} for this volume"
    )
