"""Stage `learn-affinities`: train the network of affinities on labelled boxes, in minutes."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ffn.config import Mask
from ffn.errors import ConfigError
from ffn.geometry import Box, zyx
from ffn.inference.affinities import NEAR, STEP, Sections, leave_gpus, load, network, save
from ffn.io.masks import Masks, open_masks
from ffn.io.open import open_labels, open_volume
from ffn.io.volume import (
    IGNORED,
    Volume,
    require_image,
    require_inside,
    require_labels,
    require_same_voxel_size,
    voxel_size_of,
)
from ffn.options import add_options, from_arguments
from ffn.progress import progress_bar
from ffn.provenance import provenance
from ffn.training.config import AffinitiesConfig
from ffn.training.plan import ValidationSource, parse_masks, parse_validation

if TYPE_CHECKING:
    import keras

# Our choices, on SNEMI3D (z < 64) and FIB-25 (z < 120).
SECTIONS, CROP, BATCH, RATE = 2 * NEAR + 1, 128, 4, 2e-3
JITTER = 0.1  # of contrast and brightness of each section, standard deviations
ROWS = 50  # steps between two losses in the log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Learn which neighbouring voxels lie in one body, from labelled boxes, in a few minutes of one core.

    A 2D network sees seven sections. 'ffn affinities' applies it, and 'ffn fill --affinities' assembles segments by it.

    example:
      ffn learn-affinities --volume demo=raw.zarr,labels.zarr,0:64,0:256,0:256 --out network.h5
    """
    parser.add_argument(
        "--volume",
        action="append",
        required=True,
        metavar="NAME=IMAGE,LABELS,Z0:Z1,Y0:Y1,X0:X1",
        help="labelled box to learn from; 0 in labels is between bodies; repeatable",
    )
    parser.add_argument("--masks", action="append", default=[], metavar="NAME=MASK", help="left out; repeatable")
    parser.add_argument("--rng-seed", type=int, default=1, metavar="INT", help="default: %(default)s")
    parser.add_argument("--out", required=True, metavar="FILE.h5", help="network to write")
    add_options(parser, AffinitiesConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    volumes, masks = parse_validation(arguments.volume, {}, "--volume"), parse_masks(arguments.masks)
    learn(volumes, masks, from_arguments(AffinitiesConfig, arguments), arguments.rng_seed, arguments.out)


class Source(NamedTuple):
    """A labelled box to learn from."""

    sections: Sections
    labels: Volume
    masks: Masks
    box: Box
    crop: tuple[int, int, int]


def learn(
    volumes: Mapping[str, ValidationSource],
    masks: Mapping[str, Sequence[Mask]],
    config: AffinitiesConfig,
    rng_seed: int,
    out: str,
) -> None:
    """Write a network that was trained on crops of the labelled boxes.

    All volumes have the same voxel size. Masked voxels and ignored labels are not learnt from.

    Raises
    ------
    VolumeError, ConfigError
        If a volume cannot be read, or a box is too small for one crop.
    """
    if not (config.max_steps or config.network):
        raise ConfigError("--max-steps: 0 keeps the initial affinities, expected --network to name them")
    with contextlib.ExitStack() as stack:
        sources = [opened(stack, name, one, masks.get(name, ())) for name, one in volumes.items()]
        for source in sources:
            require_same_voxel_size(source.labels, sources[0].labels)
        leave_gpus()
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(rng_seed)
        tf.config.experimental.enable_op_determinism()
        size = voxel_size_of(sources[0].labels)
        net, rate = (load(config.network, size), RATE / 2) if config.network else (network(), RATE)
        fit(net, sources, config.max_steps, rate, np.random.default_rng(rng_seed))
        named = " ".join(f"{name}={','.join(map(str, one))}" for name, one in volumes.items())
        save(out, net, size, provenance("learn-affinities", config, volumes=named, rng_seed=rng_seed))


def opened(stack: contextlib.ExitStack, name: str, one: ValidationSource, masks: Sequence[Mask]) -> Source:
    """Open a labelled box to learn from, until the stack closes."""
    image, labels = stack.enter_context(open_volume(one.image)), stack.enter_context(open_labels(one.labels))
    require_image(image)
    require_labels(labels)
    require_same_voxel_size(labels, image)
    require_inside(image, one.box)
    require_inside(labels, one.box)
    masked = stack.enter_context(open_masks(masks, image.voxel_size_zyx_nm))
    return Source(Sections(image, one.box), labels, masked, one.box, crop_of(one.box, name))


def crop_of(box: Box, name: str) -> tuple[int, int, int]:
    """Return the size of the crops in a box: all sections that the network sees, and at most `CROP` pixels."""
    z, y, x = box.shape
    if z < SECTIONS or min(y, x) < STEP:
        found = f"{name} has a labelled box of {z}×{y}×{x} voxels"
        raise ConfigError(f"affinities: {found}, expected {SECTIONS}×{STEP}×{STEP}. Enlarge it, or set max_steps: 0")
    return SECTIONS, min(CROP, y // STEP * STEP), min(CROP, x // STEP * STEP)


def fit(net: keras.Model, sources: Sequence[Source], steps: int, rate: float, rng: np.random.Generator) -> None:
    """Train on crops that are mirrored, transposed and changed in contrast."""
    import keras

    schedule = keras.optimizers.schedules.CosineDecay(rate, max(1, steps))
    net.compile(keras.optimizers.Adam(schedule), keras.losses.BinaryCrossentropy(from_logits=True))
    shares = np.array([one.box.num_voxels for one in sources], float)
    with progress_bar(steps, "learn affinities", "step") as bar:
        for step in range(steps):
            source = sources[rng.choice(len(sources), p=shares / shares.sum())]
            seen, wanted, known = zip(*(example(source, rng) for _ in range(BATCH)), strict=True)
            loss = net.train_on_batch(np.stack(seen), np.stack(wanted), sample_weight=np.stack(known))
            if step % ROWS == 0:
                bar.set_postfix(loss=f"{float(np.ravel(loss)[0]):.3f}", refresh=False)
            bar.update()


def example(source: Source, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw a crop.

    Sections that the network sees (Y, X, sections), affinities of the middle one (Y, X, 3), and where these are known.
    """
    room = zip(source.box.start, source.box.stop, source.crop, strict=True)
    box = Box.from_shape(source.crop, zyx([int(rng.integers(start, stop - n + 1)) for start, stop, n in room]))
    seen, bodies = source.sections.read(box), source.labels.read(box).astype(np.uint64)
    if source.masks:
        bodies[source.masks.read(box)] = IGNORED
    for axis in np.flatnonzero(rng.integers(2, size=3)).tolist():
        seen, bodies = np.flip(seen, axis), np.flip(bodies, axis)
    if rng.integers(2) and seen.shape[1] == seen.shape[2]:
        seen, bodies = seen.transpose(0, 2, 1), bodies.transpose(0, 2, 1)
    contrast, brightness = rng.uniform(-JITTER, JITTER, (2, len(seen), 1, 1))
    seen = (seen * (1 + contrast) + brightness).astype(np.float32)
    wanted, known = affinities_of(bodies[NEAR - 1 : NEAR + 1])
    return np.moveaxis(seen, 0, -1), wanted[1], known[1]


def affinities_of(bodies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return affinities (float32, (Z, Y, X, 3)), and where they are known (float32, (Z, Y, X)).

    An affinity is 1 where a voxel is in one body with the voxel before it on the axis. Bodies lose a pixel at their
    borders in the section, so that bodies that touch are apart, too. Whether they end at the rim, or where voxels are
    ignored, is unknown.
    """
    padded = np.pad(bodies, ((0, 0), (1, 1), (1, 1)), mode="edge")
    around = np.stack([padded[:, :-2, 1:-1], padded[:, 2:, 1:-1], padded[:, 1:-1, :-2], padded[:, 1:-1, 2:]])
    inner = (bodies != 0) & (around == bodies).all(axis=0)
    known = (bodies != IGNORED) & (around != IGNORED).all(axis=0)
    known[:, [0, -1]] = known[:, :, [0, -1]] = False
    result, all_known = np.zeros((*bodies.shape, 3), np.float32), known.copy()
    for axis in range(3):
        labels, is_inner = np.moveaxis(bodies, axis, 0), np.moveaxis(inner, axis, 0)
        np.moveaxis(result[..., axis], axis, 0)[1:] = (labels[1:] == labels[:-1]) & is_inner[1:] & is_inner[:-1]
        np.moveaxis(all_known, axis, 0)[1:] &= np.moveaxis(known, axis, 0)[:-1]
    return result, all_known.astype(np.float32)
