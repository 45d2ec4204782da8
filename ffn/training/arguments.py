"""Arguments that name the data of a training, for `ffn train` and `ffn study train`."""

from __future__ import annotations

import argparse
from collections.abc import Collection

from pydantic import ValidationError

from ffn.config import ImageConfig, Mask, Normalize, explain
from ffn.errors import ConfigError
from ffn.geometry import Box
from ffn.options import whole_number
from ffn.training.plan import TrainingData, ValidationSource


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options for the training data."""
    parser.add_argument("--records", required=True, metavar="FOLDER", help="records folder, as 'ffn records' writes it")
    parser.add_argument(
        "--volume",
        required=True,
        action="append",
        metavar="NAME=IMAGE,LABELS",
        help="image and labels, each NAME.zarr or FILE.h5:DATASET, of the volume NAME in the records; repeatable",
    )
    parser.add_argument(
        "--normalize",
        default=[],
        action="append",
        metavar="NAME=METHOD",
        help="grey levels of the volume NAME: training, volume, match or MEAN,STDDEV (default: training); repeatable",
    )
    parser.add_argument(
        "--masks",
        default=[],
        action="append",
        metavar="NAME=MASK",
        help="voxels of the volume NAME whose grey levels do not count, such as a=soma.zarr#invert; repeatable",
    )
    parser.add_argument(
        "--rng-seed", type=whole_number, default=1, metavar="INT", help="seed of everything random (default: 1)"
    )


def training_data(arguments: argparse.Namespace, validate: list[str] | None = None) -> TrainingData:
    """Return the files that the options name; without validation, options may name volumes that are not read."""
    volumes = parse_volumes(arguments.volume)
    validation = parse_validation(validate or [], volumes)
    known = None if validate is None else {**volumes, **validation}
    methods, masks = parse_normalize(arguments.normalize, known), parse_masks(arguments.masks, known)
    return TrainingData(arguments.records, volumes, validation, methods, masks)


def parse_volumes(items: list[str]) -> dict[str, tuple[str, str]]:
    """Return image and labels by volume name, from ``NAME=IMAGE,LABELS``."""
    split = _by_name("--volume", items, ["IMAGE", "LABELS"], "a=raw.zarr,labels.zarr")
    return {name: (image, labels) for name, (image, labels) in split.items()}


def parse_validation(items: list[str], volumes: dict[str, tuple[str, str]]) -> dict[str, ValidationSource]:
    """Return the validation boxes by volume name, from ``NAME=IMAGE,LABELS,BOX``."""
    sources: dict[str, ValidationSource] = {}
    example = "a=raw.h5:raw,labels.h5:a,0:99,0:99,200:299"
    parts = ["IMAGE", "LABELS", "Z0:Z1,Y0:Y1,X0:X1"]
    for name, (image, labels, box) in _by_name("--validate", items, parts, example).items():
        if volumes.get(name, (image, labels)) != (image, labels):
            expected = ",".join(volumes[name])
            raise ConfigError(f"--validate {name}: found {image},{labels}, expected {expected} as for --volume")
        try:
            sources[name] = ValidationSource(image, labels, Box.parse(box))
        except ConfigError as error:
            raise ConfigError(f"--validate {name}: {error}") from None
    return sources


def parse_normalize(items: list[str], names: Collection[str] | None = None) -> dict[str, Normalize]:
    """Return how volumes are normalised by their names, from ``NAME=METHOD``; `names` are those that are known."""
    split = _by_name("--normalize", items, ["METHOD"], "a=volume")
    _require_known("--normalize", split, names)
    try:
        return {name: ImageConfig(normalize=method).normalize for name, (method,) in split.items()}
    except ValidationError as error:
        raise ConfigError(explain(error, lambda path: f"--{path[0]}")) from None


def parse_masks(items: list[str], names: Collection[str] | None = None) -> dict[str, tuple[Mask, ...]]:
    """Return the masks of volumes by their names, from ``NAME=MASK``; `names` as in `parse_normalize`."""
    masks: dict[str, tuple[Mask, ...]] = {}
    for item in items:
        name, _, text = item.partition("=")
        if not (name and text):
            raise ConfigError(f"--masks: found {item!r}, expected NAME=MASK as in a=soma.zarr#invert")
        try:
            masks[name] = (*masks.get(name, ()), Mask.model_validate(text))
        except ValidationError as error:
            raise ConfigError(explain(error, lambda path: "--masks")) from None
    _require_known("--masks", masks, names)
    return masks


def _require_known(option: str, found: Collection[str], names: Collection[str] | None) -> None:
    if names is not None and (unknown := [name for name in found if name not in names]):
        raise ConfigError(f"{option}: found volume {unknown[0]!r}, expected one of {', '.join(names)}")


def _by_name(option: str, items: list[str], parts: list[str], example: str) -> dict[str, list[str]]:
    """Split ``NAME=PART,PART`` items; the last part may contain commas."""
    found: dict[str, list[str]] = {}
    for item in items:
        name, equals, rest = item.partition("=")
        values = rest.split(",", len(parts) - 1)
        if not (name and equals and len(values) == len(parts) and all(values)):
            raise ConfigError(f"{option}: found {item!r}, expected NAME={','.join(parts)} as in {example}")
        if name in found:
            raise ConfigError(f"{option}: {name!r} occurs twice, expected each volume once")
        found[name] = values
    return found
