"""Arguments that name the data of a training, for `ffn train` and `ffn study train`."""

from __future__ import annotations

import argparse

from pydantic import ValidationError

from ffn.config import ImageConfig, Normalize, explain
from ffn.errors import ConfigError
from ffn.geometry import Box
from ffn.options import add_staging_option, whole_number
from ffn.training.plan import ValidationSource


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
        "--rng-seed", type=whole_number, default=1, metavar="INT", help="seed of everything random (default: 1)"
    )
    add_staging_option(parser)


def parse_volumes(items: list[str]) -> dict[str, tuple[str, str]]:
    """Return image and labels by volume name, from ``NAME=IMAGE,LABELS``.

    Raises
    ------
    ConfigError
        If an item has another form, or a name occurs twice.
    """
    volumes: dict[str, tuple[str, str]] = {}
    for item in items:
        name, (image, labels) = _split("--volume", item, ["IMAGE", "LABELS"], "a=raw.h5:raw,labels.h5:a")
        if name in volumes:
            raise ConfigError(f"--volume: {name!r} occurs twice, expected each volume once")
        volumes[name] = (image, labels)
    return volumes


def parse_validation(items: list[str], volumes: dict[str, tuple[str, str]]) -> dict[str, ValidationSource]:
    """Return the validation boxes by volume name, from ``NAME=IMAGE,LABELS,BOX``."""
    sources: dict[str, ValidationSource] = {}
    example = "a=raw.h5:raw,labels.h5:a,0:99,0:99,200:299"
    for item in items:
        name, (image, labels, box) = _split("--validate", item, ["IMAGE", "LABELS", "Z0:Z1,Y0:Y1,X0:X1"], example)
        if name in sources:
            raise ConfigError(f"--validate: {name!r} occurs twice, expected each volume once")
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
    split = (_split("--normalize", item, ["METHOD"], "a=volume") for item in items)
    try:
        return {name: ImageConfig(normalize=method).normalize for name, (method,) in split}
    except ValidationError as error:
        raise ConfigError(explain(error, lambda path: f"--{path[0]}")) from None


def _split(option: str, item: str, parts: list[str], example: str) -> tuple[str, list[str]]:
    """Split ``NAME=PART,PART``; the last part may contain commas."""
    name, equals, rest = item.partition("=")
    found = rest.split(",", len(parts) - 1)
    if not (name and equals and len(found) == len(parts) and all(found)):
        raise ConfigError(f"{option}: found {item!r}, expected NAME={','.join(parts)} as in {example}")
    return name, found
