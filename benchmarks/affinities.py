r"""A baseline for what a network segments: affinities learnt in minutes, a watershed, mean-affinity agglomeration.

    python benchmarks/affinities.py --image results/snemi3d/volumes/cortex/raw.zarr \
        --labels results/snemi3d/volumes/cortex/labels.zarr --train 0:64,0:512,0:512 --box 64:80,128:384,128:384 \
        --out affinities.zarr
    ffn evaluate --segmentation affinities.zarr --truth results/snemi3d/volumes/cortex/labels.zarr --out scores.json

A 2D network sees seven sections and predicts for each voxel of the middle one whether it lies in one body with the
voxels before it on the axes z, y and x. It learns on the first seven eighths of the sections of --train; the rest
chooses the threshold of the agglomeration, so --box may be any box that training does not see. Writes the segmentation
of --box, which `ffn evaluate` scores, and prints the scores of all thresholds on both boxes.
"""

from __future__ import annotations

import argparse
import heapq
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import ndimage
from skimage.segmentation import watershed

from ffn.assembly.connected import connected_roots, label_pieces
from ffn.contingency import count_pairs
from ffn.evaluation.scores import score
from ffn.geometry import Box, VoxelSize
from ffn.io.open import open_truth, open_volume
from ffn.io.store import create_volume
from ffn.io.volume import Placement, voxel_size_of

if TYPE_CHECKING:
    import keras

NEAR = 3  # sections that the network sees before and after its own
WIDTHS = (16, 32, 48, 64)  # features by level
CROP, BATCH, RATE = 128, 4, 2e-3
JITTER = 0.1  # of contrast and brightness of each section, standard deviations
SEEDS_NM = 30.0  # a seed has no voxel farther from membranes within this distance
THRESHOLDS = np.arange(2, 18) / 20
Merge = tuple[int, int, float]


def main(words: Sequence[str] | None = None) -> None:
    """Train, choose the threshold, segment, score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", required=True, metavar="VOLUME", help="raw image")
    parser.add_argument("--labels", required=True, metavar="VOLUME", help="ground truth, 0 is between bodies")
    parser.add_argument("--train", required=True, type=Box.parse, metavar="BOX", help="labelled box to learn from")
    parser.add_argument("--box", required=True, type=Box.parse, metavar="BOX", help="box to segment")
    parser.add_argument("--out", required=True, metavar="NAME.zarr", help="segmentation to write")
    parser.add_argument("--steps", type=int, default=1200, metavar="INT", help="of four crops of 128² (default: 1200)")
    parser.add_argument("--rng-seed", type=int, default=1, metavar="INT", help="default: 1")
    arguments = parser.parse_args(words)
    (z, *start), stop = arguments.train.start, arguments.train.stop
    middle = z + arguments.train.shape[0] * 7 // 8
    learnt, held_out = Box((z, *start), (middle, *stop[1:])), Box((middle, *start), stop)
    with open_volume(arguments.image) as image, open_truth(arguments.labels) as truth:
        size = voxel_size_of(image)
        began = time.process_time()
        net = train(image.read(learnt), truth.read(learnt), arguments.steps, arguments.rng_seed)
        print(f"trained for {(time.process_time() - began) / 60:.1f} minutes of a core")
        chosen = 0.0
        for name, box in (("held out", held_out), ("segmented", arguments.box)):
            wide = Box((max(box.start[0] - NEAR, image.box.start[0]), *box.start[1:]), box.stop)
            affinities = predict(net, image.read(wide))[box.start[0] - wide.start[0] :]
            fragments = fragment(affinities, size)
            merges = agglomerate(int(fragments.max()) + 1, *faces(fragments, affinities))
            pieces = label_pieces(truth.read(box))
            scores = [score(count_pairs(pieces, joined(fragments, merges, t)), "all") for t in THRESHOLDS]
            best = int(np.argmin([one["voi"] or 0 for one in scores]))
            chosen = chosen or float(THRESHOLDS[best])
            for threshold, one in zip(THRESHOLDS, scores, strict=True):
                print(f"{name:9}  {threshold:.2f}  VOI {one['voi']:.3f}  ARE {one['are']:.3f}")
        print(f"chosen {chosen:.2f}, best by the truth {THRESHOLDS[best]:.2f}")
        with create_volume(arguments.out, np.uint64, Placement(arguments.box, size, {})) as out:
            out.write(arguments.box, joined(fragments, merges, chosen))


def normalized(image: np.ndarray) -> np.ndarray:
    """Return each section with mean 0 and standard deviation 1."""
    image = image.astype(np.float32)
    return (image - image.mean((1, 2), keepdims=True)) / np.maximum(image.std((1, 2), keepdims=True), 1e-3)


def true_affinities(labels: np.ndarray) -> np.ndarray:
    """Return (Z, Y, X, 3), 1 in one body with the voxel before; bodies lose a pixel at their borders in the section."""
    inner = labels != 0
    for axis in (1, 2):
        same = np.moveaxis(labels, axis, 0)[1:] == np.moveaxis(labels, axis, 0)[:-1]
        along = np.moveaxis(inner, axis, 0)
        along[1:] &= same
        along[:-1] &= same
    result = np.zeros((*labels.shape, 3), np.float32)
    for axis in range(3):
        here, is_inner = np.moveaxis(labels, axis, 0), np.moveaxis(inner, axis, 0)
        np.moveaxis(result[..., axis], axis, 0)[1:] = (here[1:] == here[:-1]) & is_inner[1:] & is_inner[:-1]
    return result


def network() -> keras.Model:
    """Build a U-Net over (B, Y, X, sections) with three affinities as output."""
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
    return Model(image, layers.Conv2D(3, 1, activation="sigmoid")(net))


def train(image: np.ndarray, labels: np.ndarray, steps: int, rng_seed: int) -> keras.Model:
    """Train on crops that are mirrored, transposed and changed in contrast."""
    import keras

    keras.utils.set_random_seed(rng_seed)
    rng, net = np.random.default_rng(rng_seed), network()
    schedule = keras.optimizers.schedules.CosineDecay(RATE, steps)
    net.compile(keras.optimizers.Adam(schedule), "binary_crossentropy")
    image = normalized(image)
    crop = min(CROP, *(n // 8 * 8 for n in image.shape[1:]))
    for _ in range(steps):
        pairs = [example(image, labels, crop, rng) for _ in range(BATCH)]
        net.train_on_batch(*(np.stack(each) for each in zip(*pairs, strict=True)))
    return net


def example(
    image: np.ndarray, labels: np.ndarray, crop: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the sections that the network sees, (Y, X, sections), and the affinities of the middle one."""
    start = [int(rng.integers(n - size + 1)) for n, size in zip(image.shape, (2 * NEAR + 1, crop, crop), strict=True)]
    part = tuple(slice(a, a + size) for a, size in zip(start, (2 * NEAR + 1, crop, crop), strict=True))
    seen, bodies = image[part], labels[part]
    for axis in np.flatnonzero(rng.integers(2, size=3)).tolist():
        seen, bodies = np.flip(seen, axis), np.flip(bodies, axis)
    if rng.integers(2):
        seen, bodies = seen.transpose(0, 2, 1), bodies.transpose(0, 2, 1)
    contrast, brightness = rng.uniform(-JITTER, JITTER, (2, len(seen), 1, 1))
    seen = (seen * (1 + contrast) + brightness).astype(np.float32)
    return np.moveaxis(seen, 0, -1), true_affinities(bodies[NEAR - 1 : NEAR + 1])[1]


def predict(net: keras.Model, image: np.ndarray) -> np.ndarray:
    """Return affinities (Z, Y, X, 3); sections are mirrored where they end."""
    sides = [(0, -n % 8) for n in image.shape[1:]]
    padded = np.pad(normalized(image), ((NEAR, NEAR), *sides), mode="symmetric")
    seen = np.lib.stride_tricks.sliding_window_view(padded, 2 * NEAR + 1, axis=0)
    found = np.concatenate([np.asarray(net(seen[z : z + 1], training=False)) for z in range(len(seen))])
    return found[:, : image.shape[1], : image.shape[2]]


def fragment(affinities: np.ndarray, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Segment by a watershed of the mean affinity, section by section where these are more than twice as thick."""
    is_thick = voxel_size_zyx_nm[0] > 2 * voxel_size_zyx_nm[1]
    mean = affinities[..., 1 if is_thick else 0 :].mean(-1)
    near, corners = ndimage.generate_binary_structure(3, 1), ndimage.generate_binary_structure(3, 3)
    sampling = list(voxel_size_zyx_nm)
    if is_thick:
        near[[0, 2]] = corners[[0, 2]] = False
        sampling[0] = 1e6  # no other section is near
    distance = ndimage.distance_transform_edt(mean > 0.5, sampling)
    window = [2 * int(SEEDS_NM / side) + 1 for side in sampling]
    peaks = (distance > 0) & (ndimage.maximum_filter(distance, window) == distance)
    return watershed(-mean, ndimage.label(peaks, corners)[0], near)


def faces(fragments: np.ndarray, affinities: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pairs of adjacent fragments (N, 2), the sums of their affinities, and the numbers of their faces."""
    rows = []
    for axis in range(3):
        here, values = np.moveaxis(fragments, axis, 0), np.moveaxis(affinities[..., axis], axis, 0)[1:]
        is_face = here[1:] != here[:-1]
        rows.append(np.stack([here[1:][is_face], here[:-1][is_face], values[is_face]]))
    *ends, values = np.concatenate(rows, axis=1)
    pairs, inverse = np.unique(np.sort(np.stack(ends, 1).astype(np.int64), axis=1), axis=0, return_inverse=True)
    return pairs, np.bincount(inverse.ravel(), values), np.bincount(inverse.ravel())


def agglomerate(num_fragments: int, pairs: np.ndarray, sums: np.ndarray, counts: np.ndarray) -> list[Merge]:
    """Join the pair of the highest mean affinity again and again; list the joins with the lowest affinity so far."""
    around: list[dict[int, tuple[float, int]]] = [{} for _ in range(num_fragments)]
    heap = []
    for (a, b), total, count in zip(pairs.tolist(), sums.tolist(), counts.tolist(), strict=True):
        around[a][b] = around[b][a] = total, count
        heap.append((-total / count, count, a, b))
    heapq.heapify(heap)
    merges, lowest = list[Merge](), 1.0
    while heap:
        negative, count, a, b = heapq.heappop(heap)
        if b not in around[a] or around[a][b] != (around[a][b][0], count) or -around[a][b][0] / count != negative:
            continue  # joined with others since
        lowest = min(lowest, -negative)
        merges.append((a, b, lowest))
        a, b = (a, b) if len(around[a]) >= len(around[b]) else (b, a)
        del around[a][b], around[b][a]
        for other, (total, count) in around[b].items():
            del around[other][b]
            before = around[a].get(other, (0.0, 0))
            total, count = total + before[0], count + before[1]
            around[a][other] = around[other][a] = total, count
            heapq.heappush(heap, (-total / count, count, min(a, other), max(a, other)))
        around[b] = {}
    return merges


def joined(fragments: np.ndarray, merges: list[Merge], threshold: float) -> np.ndarray:
    """Return the segmentation at a threshold, uint64."""
    links = np.array([(a, b) for a, b, lowest in merges if lowest >= threshold], np.int64).reshape(-1, 2)
    return connected_roots(int(fragments.max()) + 1, links)[fragments].astype(np.uint64)


if __name__ == "__main__":
    main()
