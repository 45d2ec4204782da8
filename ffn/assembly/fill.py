"""Assign unsegmented voxels (membranes, borders, specks) to the segments around them."""

from __future__ import annotations

import argparse
import itertools

import numpy as np

from ffn.assembly.competitors import Scene
from ffn.assembly.config import FillConfig
from ffn.assembly.fragments import Fragments
from ffn.config import Mask
from ffn.geometry import Box
from ffn.io.blocks import WHOLE, Job, Writers, reduce_step
from ffn.io.masks import Inputs, add_stage_options, stage_options
from ffn.io.shards import Shards
from ffn.io.store import require_replaceable
from ffn.io.store_names import MAIN

COMPETE = "compete"  # step before the blocks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Assign unsegmented voxels to the segments around them, by a seeded watershed of the smoothed image.

    Bright places that membranes separate from all segments become new segments. The input is not changed. Voxels beyond
    the maximum distance stay unsegmented. With affinities, the voxels of segments are assigned anew, too.

    example:
      ffn fill --segmentation seg.zarr --image raw.zarr --max-distance 100 --out filled.zarr
    """
    volumes = {"--segmentation": "labels", "--image": "raw image"}
    add_stage_options(parser, FillConfig, volumes, "uint64 filled segmentation", (COMPETE,))
    parser.add_argument("--affinities", metavar="NAME.zarr", help="of ffn affinities; its fragments are joined instead")
    text = "with affinities: none joins segments that this file separates"
    parser.add_argument("--corrections", metavar="FILE.csv", help=text)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    config, masks, job = stage_options(arguments, FillConfig)
    specs = {name: getattr(arguments, name) for name in ("segmentation", "image", "affinities", "corrections")}
    fill(arguments.out, config, masks, job, **{name: spec for name, spec in specs.items() if spec is not None})


def fill(out: str, config: FillConfig, masks: tuple[Mask, ...] = (), job: Job = WHOLE, **specs: str) -> None:
    """Write a copy of a segmentation with its gaps filled.

    With affinities, fragments are joined, see `ffn.assembly.fragments`. Else, bright places without a segment compete
    with the segments; the step `COMPETE` fills for a first time and chooses their ids, see
    `ffn.assembly.competitors.settle`.

    Tiles of ``config.block_size_zyx``, counted from the first voxel, are filled one by one; shards and jobs do not
    change them. Tiles are cut where sections of the image are displaced (its table ``jumps``): no flood crosses a jump,
    so what has no segment between two jumps stays empty. A tile is read with a halo of twice the maximum distance, and
    70 nm. A watershed has no strict reach, so the border between two segments may still depend on the tiles: on FIB-25
    with 100 nm and without competitors, 0.3 % of the filled voxels did with tiles of 128³, which have twice as many
    borders as those of 256³; 0.2 % with twice the halo, 0.8 % with half of it. Without masks and jumps, the set of
    filled voxels never depends on it.

    `specs` are ``segmentation`` (labels, 0 where nothing was segmented) and ``image``, which covers it; ``affinities``,
    a store of `ffn.inference.affinities.affinities`, and with it ``corrections``: segments that they separate stay
    apart. Masked voxels are not filled.
    """
    require_replaceable(out, {MAIN})  # not after the step
    if affinities := specs.pop("affinities", None):
        specs |= Fragments.volumes_of(affinities)
    else:
        specs.pop("corrections", None)
    with Inputs("fill", config, out, masks, **specs) as inputs:
        scene: Fragments | Scene
        if affinities:
            scene = Fragments.open(inputs, config, specs.get("corrections"))
        else:
            scene = Scene.open(inputs, config, specs["image"], out)
        tiles = Shards(scene.segmentation.box, config.block_size_zyx)
        parts = [part for tile in tiles.boxes() for part in scene.parts(tile)]
        settled = reduce_step(out, COMPETE, parts, scene.compete, scene.settle, inputs.key(), job)
        if settled is None:
            return
        numbers = {part.start: number for number, part in enumerate(parts)}

        def work(block: Box, writers: Writers) -> None:
            for part in itertools.chain.from_iterable(map(scene.parts, tiles.touched_by(block))):
                inside = part.intersect(block)
                if not inside.is_empty:
                    writers[MAIN].write(inside, scene.filled(inside, part, settled, numbers[part.start]))

        inputs.map(scene.segmentation, {MAIN: np.uint64}, work, job)
