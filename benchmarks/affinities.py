"""Make the affinities of config/weights/serial-sections, which learn from two tissues, changed to look like others.

    python benchmarks/affinities.py results/affinities --data ../shared/data --network NETWORK.h5

NETWORK.h5 is what `config/snemi3d.yaml` learns from mouse cortex, 30 × 12 × 12 nm. It learns 1,500 steps more, seven in
ten from the same sections and three from fly medulla: FIB-25 as if cut at 30 nm, of whose image y < 125 is seen. Crops
are magnified, some have sections of twice the distance, and all are changed as another microscope might show them:
sharpness, gamma, contrast, noise, sections that are blank or out of place. On a third tissue, these changes alone gain
half of what they gain with the second tissue, which gains nothing alone: docs/experiments.md. Results stay in FOLDER.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
from scipy import ndimage
from skimage import io, transform

from ffn.geometry import Box, zyx
from ffn.inference.affinities import NEAR, leave_gpus, load, save
from ffn.provenance import provenance
from ffn.training.affinities import BATCH, JITTER, RATE, Source, affinities_of, opened
from ffn.training.plan import parse_validation

STEPS, SEED = 1500, 1
SHARES = 0.7, 0.3  # of cortex and fly
VOXEL_NM = (30.0, 12.0, 12.0)
BOXES = {"cortex": "0:64,0:512,0:512", "fly": "0:57,0:104,0:208"}  # the other half of the fly's is for scores
SIDE = 250 * 10 // 12  # pixels of 12 nm of a section of the fly


def main() -> None:
    """Make the volumes that are missing, learn, and write FOLDER/affinities.h5."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder with fib25 and snemi3d")
    parser.add_argument("--network", required=True, help="affinities to start from")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    make_volumes(given.folder, given.data)
    learn(given.folder, given.network)


def make_volumes(folder: Path, data: Path) -> None:
    """Write images, evened by CLAHE, and labels of both tissues."""
    cortex, fly = data / "snemi3d" / "snemi3d_z000-080.h5", folder / "fly.h5"
    if not fly.exists():
        paths = sorted((data / "fib25" / "raw").glob("*.png"))[:170:3]
        image = np.stack([scaled(io.imread(path), 1) for path in paths]).round().astype(np.uint8)
        with h5py.File(data / "fib25" / "labels_z000-170.h5") as file:
            labels = np.stack([scaled(section, 0) for section in file["stack"][::3]]).astype(np.uint64)
        with h5py.File(fly, "w") as file:
            file["raw"], file["labels"] = image, labels
    for name, source, size in (("cortex", cortex, "30 6 6 --mip 1"), ("fly", fly, "30 12 12")):
        for kind, options in (("raw", "--clahe-tile 128"), ("labels", "--kind labels")):
            if not (out := folder / f"{name}-{kind}.zarr").exists():
                words = f"ingest {source}:{kind} --voxel-size {size} {options} --out {out}"
                subprocess.run([sys.executable, "-m", "ffn", *words.split()], check=True)


def scaled(section: np.ndarray, order: int) -> np.ndarray:
    """Return a section of 10 nm pixels in pixels of 12 nm, float64; of `order` 0, with the values that it has."""
    values = section.astype(np.float64)
    return transform.resize(values, (SIDE, SIDE), order=order, anti_aliasing=order > 0, preserve_range=True)


def learn(folder: Path, start: str) -> None:
    """Learn from crops of both tissues."""
    import keras
    import tensorflow as tf

    leave_gpus()
    boxes = [f"{name}={folder}/{name}-raw.zarr,{folder}/{name}-labels.zarr,{box}" for name, box in BOXES.items()]
    with contextlib.ExitStack() as stack:
        sources = [opened(stack, name, one, ()) for name, one in parse_validation(boxes, {}, "--volume").items()]
        sources = [one._replace(crop=zyx((one.crop[0], *[min(one.crop[1:])] * 2))) for one in sources]
        keras.utils.set_random_seed(SEED)
        tf.config.experimental.enable_op_determinism()
        net, rng = load(start, VOXEL_NM), np.random.default_rng(SEED)
        rate = keras.optimizers.schedules.CosineDecay(RATE / 2, STEPS)
        net.compile(keras.optimizers.Adam(rate), keras.losses.BinaryCrossentropy(from_logits=True))
        total = 0.0
        for step in range(1, STEPS + 1):
            source = sources[rng.choice(len(sources), p=SHARES)]
            seen, wanted, known = zip(*(example(source, rng) for _ in range(BATCH)), strict=True)
            loss = net.train_on_batch(np.stack(seen), np.stack(wanted), sample_weight=np.stack(known))
            total += float(np.ravel(loss)[0])
            if step % 100 == 0:
                print(f"{step} of {STEPS} steps, mean loss {total / step:.4f}", flush=True)
        origin = provenance("learn-affinities", volumes=" ".join(boxes), network=start, steps=STEPS, rng_seed=SEED)
        save(folder / "affinities.h5", net, VOXEL_NM, origin)


def example(source: Source, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw a crop, see `ffn.training.affinities.example`, magnified and as another microscope might show it."""
    zoom = np.exp(rng.uniform(-0.3, 0.3)) if rng.random() < 0.5 else 1.0
    stride = 2 if rng.random() < 0.15 else 1
    sides = [min(round(n / zoom) // 2 * 2, room) for n, room in zip(source.crop[1:], source.box.shape[1:], strict=True)]
    shape = zyx(((source.crop[0] - 1) * stride + 1, *sides))
    room = zip(source.box.start, source.box.stop, shape, strict=True)
    box = Box.from_shape(shape, zyx([int(rng.integers(a, b - n + 1)) for a, b, n in room]))
    seen, bodies = source.sections.read(box)[::stride], source.labels.read(box)[::stride].astype(np.uint64)
    places = [np.linspace(0, n - 1, side) for n, side in zip(seen.shape, source.crop, strict=True)]
    seen = ndimage.map_coordinates(seen, np.meshgrid(*places, indexing="ij"), order=1)
    bodies = bodies[np.ix_(*(np.rint(each).astype(int) for each in places))]
    for axis in np.flatnonzero(rng.integers(2, size=3)).tolist():
        seen, bodies = np.flip(seen, axis), np.flip(bodies, axis)
    if rng.integers(2):
        seen, bodies = seen.transpose(0, 2, 1), bodies.transpose(0, 2, 1)
    wanted, known = affinities_of(bodies[NEAR - 1 : NEAR + 1])
    return np.moveaxis(elsewhere(seen, rng), 0, -1), wanted[1], known[1]


def elsewhere(seen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return sections (float32) of another sharpness, gamma, contrast, brightness and noise, some of them faulty."""
    if rng.random() < 0.7:
        weight, sigma = rng.uniform(-1, 1), rng.uniform(0.5, 1.5)
        seen = seen + weight * (seen - ndimage.gaussian_filter(seen, (0, sigma, sigma)))
    if rng.random() < 0.5:
        seen = np.clip((seen + 3) / 6, 0, 1) ** np.exp(rng.uniform(-0.5, 0.5)) * 6 - 3
        seen = seen - seen.mean()
    seen = seen * (1 + rng.uniform(-0.25, 0.25)) + rng.uniform(-0.25, 0.25)
    if rng.random() < 0.5:
        seen = seen + rng.normal(0, rng.uniform(0, 0.4), seen.shape)
    for z in range(len(seen)):
        if z != NEAR and rng.random() < 0.02:
            seen[z] = 0 if rng.random() < 0.5 else np.roll(seen[z], rng.integers(-8, 9, 2), (0, 1))
    contrast, brightness = rng.uniform(-JITTER, JITTER, (2, len(seen), 1, 1))
    return (seen * (1 + contrast) + brightness).astype(np.float32)


if __name__ == "__main__":
    main()
