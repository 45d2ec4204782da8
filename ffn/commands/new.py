"""`ffn new`: write the configuration of a first run for an image and labels."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from ffn.errors import ConfigError
from ffn.io import atomic, hdf5
from ffn.io.config import FoundConfig
from ffn.io.open import readable_formats, voxel_sizes
from ffn.io.volume import HDF5_SUFFIXES, split_spec
from ffn.options import add_options, from_arguments, positive_number

# Datasets of image and labels, where a file is given without: those of CREMI, and the usual names.
DATASETS = (("volumes/raw", "volumes/labels/neuron_ids"), ("raw", "labels"), ("image", "labels"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Write the configuration of a first run for your image, with or without labels.

    It looks at both: boxes to train on, to validate on and to score, the FOV, weights and times follow. 'ffn run FILE'
    runs it as it is; what it could not know is a remark in it.

    example:
      ffn new mine.yaml --image 'slices/*.png' --labels labels.h5:labels --voxel-size 30 8 8
    """
    formats = readable_formats()
    parser.add_argument("out", metavar="FILE.yaml", help="configuration to write; its name is that of the run")
    parser.add_argument("--image", required=True, metavar="IMAGE", help=f"image: {formats}; of CREMI, the file alone")
    parser.add_argument("--labels", metavar="LABELS", help="truth of a part of it or of all, in any of these formats")
    zyx: dict[str, Any] = {"nargs": 3, "metavar": ("Z", "Y", "X")}
    text = "edge lengths of a voxel, nm (default: those of the image)"
    parser.add_argument("--voxel-size", type=float, help=text, **zyx)
    text = "place of the first voxel of the labels, voxels (default: what they say)"
    parser.add_argument("--labels-offset", type=int, help=text, **zyx)
    parser.add_argument("--init", metavar="MODEL", help="weights to start from (default: ours, if they fit)")
    text = "how long training may take on this machine (default: minutes from other weights, else until it is good); 0 "
    text += "segments with weights as they are, for a first look"
    parser.add_argument("--hours", type=positive_number(float, or_zero=True), metavar="HOURS", help=text)
    add_options(parser, FoundConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from ffn.workflow.first_run import first_run

    out = Path(arguments.out)
    if out.exists():
        raise ConfigError(f"{out}: exists, expected a new file. Choose another name, or remove it")
    name = re.sub(r"[^A-Za-z0-9_-]", "-", out.stem).strip("-") or "mine"
    image, labels = _with_datasets(_absolute(arguments.image), arguments.labels and _absolute(arguments.labels))
    volume = {
        "image": image,
        "labels": labels,
        "voxel_size_zyx_nm": arguments.voxel_size or _asked_for(image),
        "labels_offset_zyx": arguments.labels_offset,
        **from_arguments(FoundConfig, arguments).model_dump(mode="json", exclude_defaults=True),
    }
    text = first_run(name, volume, arguments.init and _absolute(arguments.init), arguments.hours)
    atomic.write_text(out, text)
    given = shlex.quote(str(out))
    print(f"{text}\n{out}: written. Look at it, then: ffn run {given} -n; ffn run {given}")


def _with_datasets(image: str, labels: str | None) -> tuple[str, str | None]:
    """Name the datasets of an HDF5 file that is given without, if they have usual names."""
    if split_spec(image)[1] is None and Path(image).suffix.lower() in HDF5_SUFFIXES:
        with hdf5.open_file(image) as file:
            found = {name.strip("/") for name in hdf5.list_datasets(file)}
        for grey, ids in DATASETS:
            if grey in found:
                return f"{image}:{grey}", labels or (f"{image}:{ids}" if ids in found else None)
    return image, labels


def _absolute(spec: str) -> str:
    return spec if "://" in spec else os.path.abspath(os.path.expanduser(spec))


def _asked_for(image: str) -> list[float] | None:
    """Return the voxel size that the user types if an image declares none, None if it does."""
    if voxel_sizes(image)[0] is not None:
        return None
    try:
        words = input(f"{image}: edge lengths of a voxel in nm, z y x: ") if sys.stdin.isatty() else ""
        z, y, x = map(float, words.replace(",", " ").split())
    except (ValueError, EOFError):
        raise ConfigError(f"--voxel-size: {image} declares none, expected --voxel-size Z Y X, in nm") from None
    return [z, y, x]
