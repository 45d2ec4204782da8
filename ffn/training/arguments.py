"""Arguments that name the data of a training, for `ffn train` and `ffn study train`."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

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
    methods, masks = parse_normalize(arguments.normalize), parse_masks(arguments.masks)
    for option, named in (("--normalize", methods), ("--masks", masks)):
        known = named if validate is None else {**volumes, **validation}
        if unknown := [name for name in named if name not in known]:
            raise ConfigError(f"{option}: found volume {unknown[0]!r}, expected one of {', '.join(known)}")
    return TrainingData(arguments.records, volumes, validation, methods, masks)


def parse_volumes(items: list[str]) -> dict[str, tuple[str, str]]:
    """Return image and labels by volume name, from ``NAME=IMAGE,LABELS``."""
    split = _by_name("--volume", items, "IMAGE,LABELS")
    return {name: (image, labels) for name, (image, labels) in split.items()}


def parse_validation(items: list[str], volumes: dict[str, tuple[str, str]]) -> dict[str, ValidationSource]:
    """Return the validation boxes by volume name, from ``NAME=IMAGE,LABELS,BOX``."""
    sources: dict[str, ValidationSource] = {}
    for name, (image, labels, box) in _by_name("--validate", items, "IMAGE,LABELS,BOX").items():
        if volumes.get(name, (image, labels)) != (image, labels):
            expected = ",".join(volumes[name])
            raise ConfigError(f"--validate {name}: found {image},{labels}, expected {expected} as for --volume")
        try:
            sources[name] = ValidationSource(image, labels, Box.parse(box))
        except ConfigError as error:
            raise ConfigError(f"--validate {name}: {error}") from None
    return sources


def parse_normalize(items: list[str]) -> dict[str, Normalize]:
    """Return how volumes are normalised by their names, from ``NAME=METHOD``."""
    split = _by_name("--normalize", items, "METHOD")
    with _one_line("--normalize"):
        return {name: ImageConfig(normalize=method).normalize for name, (method,) in split.items()}


def parse_masks(items: list[str]) -> dict[str, tuple[Mask, ...]]:
    """Return the masks of volumes by their names, from ``NAME=MASK``; a volume may have several."""
    masks: dict[str, tuple[Mask, ...]] = {}
    for item in items:
        ((name, (text,)),) = _by_name("--masks", [item], "MASK").items()
        with _one_line("--masks"):
            masks[name] = (*masks.get(name, ()), Mask.model_validate(text))
    return masks


@contextlib.contextmanager
def _one_line(option: str) -> Iterator[None]:
    """Turn a value that a model refuses into an error that names the option."""
    try:
        yield
    except ValidationError as error:
        raise ConfigError(explain(error, lambda path: option)) from None


def _by_name(option: str, items: list[str], form: str) -> dict[str, list[str]]:
    """Split ``NAME=PART,PART`` items; the last part may contain commas."""
    found: dict[str, list[str]] = {}
    for item in items:
        name, _, rest = item.partition("=")
        parts = rest.split(",", form.count(","))
        if not name or len(parts) <= form.count(",") or not all(parts):
            raise ConfigError(f"{option}: found {item!r}, expected NAME={form}")
        if name in found:
            raise ConfigError(f"{option}: {name!r} occurs twice, expected each volume once")
        found[name] = parts
    return found
