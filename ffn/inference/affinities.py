"""Stage `affinities`: a small network of the affinities of neighbouring voxels, and the fragments that they enclose."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ffn.errors import ModelError
from ffn.geometry import ZYX, Box, VoxelSize, has_thick_sections, zyx
from ffn.io.blocks import WHOLE, Job, Writers, add_job_options, job_of, map_blocks
from ffn.io.hdf5 import read_arrays, write_arrays
from ffn.io.open import identity, open_volume, read_table
from ffn.io.section_faults import JUMPS, cut_at, displaced_in
from ffn.io.volume import Placement, Volume, require_image, require_inside, voxel_size_of
from ffn.machine.gpu import load_tensorflow
from ffn.model.tissue import Tissue
from ffn.options import add_box_option, add_store_option, add_volume_option
from ffn.provenance import fingerprint, provenance

if TYPE_CHECKING:
    import keras

log = logging.getLogger(__name__)

AXES = ("z", "y", "x")
FRAGMENTS = "fragments"
PART_ZYX: ZYX = (64, 256, 256)  # predicted at a time; fragments end where it does, and at jumps
AROUND_Z = 4  # sections around a part that decide where its fragments are, if these are 3D
INSIDE = 128  # least mean affinity inside of a body
SEEDS_NM = 30.0  # a seed has no voxel farther from membranes within this distance; our choice
FAR_NM = 1e6  # to the next section, where fragments are 2D
NEAR = 3  # sections that the network sees before and after its own
WIDTHS = (16, 32, 48, 64)  # features by level; our choice
STEP = 2 ** (len(WIDTHS) - 1)  # pixels that are one at the coarsest level
REACH = 48  # pixels around a pixel that the network sees: 44, in whole steps
SAMPLES, SAMPLE_SIDE = 8, 64  # along y and x, for the grey levels of a section
VOXEL_SIZE, ORIGIN = "voxel_size_zyx_nm", "provenance"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Predict whether neighbouring voxels lie in one body, and cut the box into small fragments of bodies.

    'ffn fill --affinities' joins the fragments to segments.

    example:
      ffn affinities --image raw.zarr --network network.h5 --out affinities.zarr
    """
    add_volume_option(parser, "--image", "uint8, uint16 or float image")
    parser.add_argument("--network", required=True, metavar="FILE.h5", help="of ffn learn-affinities")
    add_box_option(parser)
    add_store_option(parser, "--out", "affinities and fragments")
    add_job_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    affinities(arguments.image, arguments.network, arguments.out, arguments.box, job_of(arguments))


def affinities(image_spec: str, network_path: str, out: str, box: Box | None = None, job: Job = WHOLE) -> None:
    """Write affinities and fragments, part by part.

    ``NAME.zarr`` gets ``z``, ``y``, ``x`` (uint8, the affinity to the voxel before on that axis, 255 stands for
    certainty; 0 along z in a displaced section), and ``fragments`` (uint64; the id is one more than the flat index of
    the first voxel in the box). Fragments are 2D where sections are more than twice as thick as their pixels. What the
    image shows around the box is seen, too.

    Raises
    ------
    VolumeError, ModelError
        If image or network cannot be read or do not fit together.
    """
    with open_volume(image_spec) as image:
        require_image(image)
        box = box or image.box
        require_inside(image, box)
        size = voxel_size_of(image)
        net, sections, jumps = load(network_path, size), Sections(image, box), read_table(image_spec, JUMPS)
        placement = Placement(box, size, provenance("affinities", image=image_spec, network=network_path, box=box))
        key = fingerprint("affinities", image=identity(image_spec), network=identity(network_path), box=box)

        def work(block: Box, writers: Writers) -> None:
            for part in (part for one in block.blocks(PART_ZYX) for part in cut_at(displaced_in(jumps, one), one)):
                outer = around(part, box, size)
                found = predict(net, sections.read(outer.grow((NEAR, 0, 0))))
                found[0] *= ~displaced(jumps, outer)
                for axis, values in zip(AXES, found, strict=True):
                    writers[axis].write(part, np.ascontiguousarray(values[part.slices(outer.start)]))
                writers[FRAGMENTS].write(part, fragment(found, outer, part, box, size))

        map_blocks(out, dict.fromkeys(AXES, np.uint8) | {FRAGMENTS: np.uint64}, placement, work, key, job)


def around(part: Box, box: Box, voxel_size_zyx_nm: VoxelSize) -> Box:
    """Return the voxels whose affinities decide about the fragments of a part of a box."""
    outer = part.grow((0 if has_thick_sections(voxel_size_zyx_nm) else AROUND_Z, REACH, REACH))
    starts, stops = list(outer.start), list(outer.stop)
    for axis in (1, 2):  # the network's coarse pixels are counted from the first voxel of the box
        starts[axis] -= (starts[axis] - box.start[axis]) % STEP
        stops[axis] += -(stops[axis] - starts[axis]) % STEP
    return Box(zyx(starts), zyx(stops))


def displaced(jumps: np.ndarray | None, box: Box) -> np.ndarray:
    """Return the voxels (bool) of a box whose section is displaced against the one before, see `JUMPS`."""
    found = np.zeros(box.shape, bool)
    for z, y_start, x_start, y_stop, x_stop, *_ in [] if jumps is None else jumps.tolist():
        tile = Box((z, y_start, x_start), (z + 1, y_stop, x_stop)).intersect(box)
        if not tile.is_empty:
            found[tile.slices(box.start)] = True
    return found


def fragment(affinities: np.ndarray, outer: Box, part: Box, box: Box, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Cut a part of a box into fragments by a watershed of the mean affinity, section by section if these are thick.

    `affinities` (uint8, (3, Z, Y, X)) are those of `outer`, and ids are counted in `box`. None is 0 unless no voxel of
    a section lies inside of a body.
    """
    from scipy import ndimage
    from skimage.segmentation import watershed

    is_thick, sampling = has_thick_sections(voxel_size_zyx_nm), list(voxel_size_zyx_nm)
    near, corners = ndimage.generate_binary_structure(3, 1), ndimage.generate_binary_structure(3, 3)
    mean = affinities[1 if is_thick else 0 :].mean(0, dtype=np.float32)
    if is_thick:
        near[[0, 2]] = corners[[0, 2]] = False
        sampling[0] = FAR_NM
    inside = part.slices(outer.start)
    # Peaks of the part itself: a body whose own peak lies beyond its face would have no seed here.
    distance = ndimage.distance_transform_edt(mean >= INSIDE, sampling)[inside]
    window = [2 * int(SEEDS_NM / side) + 1 for side in sampling]
    seeds, _ = ndimage.label((distance > 0) & (ndimage.maximum_filter(distance, window) == distance), corners)
    numbers = watershed(-mean[inside], seeds, near)
    _, first = np.unique(numbers, return_index=True)
    places = np.stack(np.unravel_index(first, part.shape)) + np.subtract(part.start, box.start)[:, None]
    ids = 1 + np.ravel_multi_index(tuple(places), box.shape).astype(np.uint64)
    return np.where(numbers > 0, ids[np.searchsorted(np.unique(numbers), numbers)], 0)


def leave_gpus() -> None:
    """Load TensorFlow, and keep it off GPUs, whose memory the flood filling and the training of other jobs need."""
    load_tensorflow()
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")


def network() -> keras.Model:
    """Build a U-Net from (B, Y, X, sections) to logits of the affinities along z, y and x (B, Y, X, 3)."""
    from keras import Input, Model, layers

    def block(net: Any, width: int) -> Any:
        for _ in range(2):
            net = layers.Conv2D(width, 3, padding="same", activation="relu")(net)
        return net

    net = image = Input((None, None, 2 * NEAR + 1))
    skips = []
    for width in WIDTHS[:-1]:
        skips.append(block(net, width))
        net = layers.MaxPooling2D()(skips[-1])
    net = block(net, WIDTHS[-1])
    for width, skip in zip(WIDTHS[-2::-1], reversed(skips), strict=True):
        net = layers.UpSampling2D()(layers.Conv2D(width, 1)(net))
        net = block(layers.Concatenate()([net, skip]), width)
    return Model(image, layers.Conv2D(3, 1)(net))


def save(path: str | Path, net: keras.Model, voxel_size_zyx_nm: VoxelSize, provenance: dict[str, Any]) -> None:
    """Write the weights and the voxels that they were learnt on."""
    weights = {f"weights-{number:02}": each for number, each in enumerate(net.get_weights())}
    write_arrays(path, weights, {VOXEL_SIZE: json.dumps(voxel_size_zyx_nm), ORIGIN: json.dumps(provenance)})


def load(path: str | Path, voxel_size_zyx_nm: VoxelSize) -> keras.Model:
    """Read a network of `save` for voxels of the same size."""
    leave_gpus()
    arrays, attributes = read_arrays(path, ModelError)
    net, weights = network(), [array for _, array in sorted(arrays.items())]
    if [each.shape for each in weights] != [each.shape for each in net.get_weights()]:
        raise ModelError(f"{path}: has other layers, expected a network of 'ffn learn-affinities' of this version")
    if other := Tissue((tuple(json.loads(attributes[VOXEL_SIZE])),)).other_size(voxel_size_zyx_nm):
        log.warning("%s: %s", path, other)
    net.set_weights(weights)
    return net


class Sections:
    """An image whose sections have mean 0 and standard deviation 1 in a box, by samples that no block changes."""

    def __init__(self, image: Volume, box: Box) -> None:
        self._image, self._box = image, box
        self._levels = functools.cache(self._measured)

    def read(self, box: Box) -> np.ndarray:
        """Return a box (float32), mirrored where it leaves the image."""
        part = box.intersect(self._image.box)
        levels = np.array([self._levels(z) for z in range(part.start[0], part.stop[0])], np.float32)
        mean, deviation = levels.T[:, :, None, None]
        values = (self._image.read(part).astype(np.float32) - mean) / deviation
        outside = [
            (inner - a, b - stop) for a, b, inner, stop in zip(box.start, box.stop, part.start, part.stop, strict=True)
        ]
        return np.pad(values, outside, mode="symmetric")

    def _measured(self, z: int) -> tuple[float, float]:
        sides = [min(SAMPLE_SIDE, n) for n in self._box.shape[1:]]
        ends = zip(self._box.start[1:], self._box.stop[1:], sides, strict=True)
        places = [np.unique(np.linspace(a, b - n, SAMPLES).astype(int)).tolist() for a, b, n in ends]
        boxes = [Box.from_shape(zyx((1, *sides)), zyx((z, *place))) for place in itertools.product(*places)]
        values = np.concatenate([self._image.read(box).ravel() for box in boxes]).astype(np.float32)
        return float(values.mean()), max(float(values.std()), 1e-3)


def predict(net: keras.Model, sections: np.ndarray) -> np.ndarray:
    """Return affinities along z, y and x: uint8 of shape (3, Z, Y, X); 255 stands for certainty.

    The sections are those of `Sections`: float32 of shape (Z + 2 * NEAR, Y, X), where Y and X are multiples of `STEP`.
    What lies within `REACH` pixels of the rim is less certain.
    """
    seen = np.lib.stride_tricks.sliding_window_view(sections, 2 * NEAR + 1, axis=0)
    logits = np.concatenate([net.predict_on_batch(seen[z : z + 1]) for z in range(len(seen))])
    return np.rint(255 / (1 + np.exp(-np.moveaxis(logits, -1, 0)))).astype(np.uint8)
