"""`ffn labels`: write labels to train on, from a run or empty ones to paint, and find faults in painted ones."""

from __future__ import annotations

import argparse
from itertools import groupby
from pathlib import Path

import numpy as np

from ffn.commands.queue import queue_inputs
from ffn.errors import ConfigError, VolumeError
from ffn.geometry import Box
from ffn.io.label_statistics import doubts_about_labels
from ffn.io.open import open_labels, open_volume
from ffn.io.store import create_volume
from ffn.io.volume import Placement, require_image, require_inside, require_labels, voxel_size_of
from ffn.options import add_box_option
from ffn.provenance import provenance

MOST = 10  # faults of each kind that are printed; our choice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Write labels to train on, or look for faults in some.

    RUN: those of its objects that people have confirmed. All contacts of such an object were answered and applied
    ('ffn correct'), or are likely to be right; or --objects names it. Other segments are 0, and voxels of which nobody
    knows the object are ignored. 'ffn round' trains on them.

    --new: empty ones in the place of an image, or of a part of it, to be painted in another program.

    --check: ids in several pieces, or missing in a section, ids at the rim alone, and holes, with their places. It ends
    with 1 if there are any.

    example:
      ffn labels --new raw.zarr --box 0:64,0:256,0:256 --out labels.zarr
    """
    parser.usage = "%(prog)s {RUN | --new IMAGE | --check LABELS} [OPTION …]"
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("run_folder", nargs="?", metavar="RUN", help="folder of a run with agglomerate.enabled")
    given.add_argument("--new", metavar="IMAGE", help="image to paint on")
    given.add_argument("--check", metavar="LABELS", help="labels to look at; they must fit into memory 40 times")
    parser.add_argument("--out", metavar="NAME.zarr", help="new OME-Zarr to write")
    add_confirmed_options(parser)
    add_box_option(parser)
    text = "start from a watershed of the image, whose pieces are to be joined, instead of empty labels"
    parser.add_argument("--watershed", action="store_true", help=text)


def add_confirmed_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options that choose the objects of a run."""
    parser.add_argument("--volume", metavar="NAME", help="volume of the run; default: its only one")
    text = "ids of more objects that are right, of the layer segmentation, such as 17,42"
    parser.add_argument("--objects", type=_ids, default=(), metavar="ID,…", help=text)


def _ids(text: str) -> list[int]:
    return list(map(int, text.split(",")))


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    if arguments.check:
        raise SystemExit(_check(arguments.check, arguments.box))
    if not arguments.out:
        raise ConfigError("--out: is missing, expected a NAME.zarr to write")
    if Path(arguments.out).exists():
        raise ConfigError(f"{arguments.out}: exists, and may hold a person's work. Choose another name, or remove it")
    if arguments.new:
        _new(arguments.new, arguments.out, arguments.box, arguments.watershed)
        return
    from ffn.viewing.queue import write_confirmed

    write_confirmed(queue_inputs(arguments.run_folder, arguments.volume, ()), arguments.objects, arguments.out)


def _new(image_spec: str, out: str, box: Box | None, prefills: bool) -> None:
    """Write labels that are 0, or pieces of a watershed."""
    from ffn.evaluation.baseline import FIRST, watersheds

    with open_volume(image_spec) as image:
        require_image(image)
        made_by = provenance("labels", None, image=image_spec, within=image.box)
        box, size = box or image.box, voxel_size_of(image)
        require_inside(image, box)
        with create_volume(out, np.uint32, Placement(box, size, made_by)) as writer:
            if prefills:
                ((_, pieces),) = watersheds(image.read(box), size, [FIRST])
                writer.write(box, pieces.astype(np.uint32))


def _check(spec: str, box: Box | None) -> int:
    """Print the worst faults of labels; return the exit status."""
    from ffn.evaluation.errors import faults

    with open_labels(spec) as labels:
        require_labels(labels)
        box = box or labels.box
        if not (voxels := labels.read(box)).any():
            raise VolumeError(f"{spec}: is 0 everywhere in {box}, expected ids. Is it the right file?")
        print(*(f"{spec}: {doubt}\n" for doubt in doubts_about_labels(labels, box)), sep="", end="", flush=True)
    found = faults(voxels, box)
    for kind, each in groupby(found, lambda fault: fault.kind):
        of_kind = list(each)
        print("\n".join(map(str, of_kind[:MOST])))
        if len(of_kind) > MOST:
            print(f"… and {len(of_kind) - MOST} more: {kind}")
    print(f"{spec}: {len(found)} faults")
    return 1 if found else 0
