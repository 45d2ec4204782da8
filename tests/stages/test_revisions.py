"""Whoever changes what a stage makes raises its revision: `MADE` holds each revision against what it makes.

The inputs are made here, from whole numbers; only `coordinates`, `records` and `train` continue the chain. Machines
round differently (AMX, AVX-512 and AVX2 add in another order, `exp` has other last digits), therefore:

- Whole numbers and texts are compared exactly, as hashes. Their inputs decide them with a margin that no rounding
  crosses: logits differ by tenths. Scores come from counts; four digits are compared.
- Arrays of other numbers are compared by a weighted mean, to four digits.

The values are those of arrays and tables, because files know the version of the package. The report and the studies
make figures, which have no values to compare; raise their revision when what they say changes.
"""

import csv
import hashlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ffn.assembly.given import Correction, corrections_text
from ffn.assembly.merge_graph import Evidence, MergeEdge, header
from ffn.cli import main
from ffn.geometry import Box
from ffn.io.store_names import MAIN
from ffn.io.training_records import read_shard
from ffn.io.volume import Placement
from ffn.provenance import revision
from ffn.workflow.stages import STAGES

from ..unit.volumes import read_scale
from ..volumes import contents as store_contents
from ..volumes import create_volumes
from .conftest import write_bright_affinities, write_bright_model

SHAPE = (32, 44, 52)
BOX = Box.from_shape(SHAPE)
SIZE = (10.0, 10.0, 10.0)
FOV = "--depth 2 --features 2 --fov-size 5 7 9 --deltas 1 2 2 --image-mean 130 --image-stddev 30"
STEPS = "--num-workers 1 --batch-size 2 --max-steps 3 --precision float32 --intra-op-threads 1 --permutable-axes"
GRAPH = [(2, 3, 0.9), (4, 5, 0.3), (6, 7, 0.7), (3, 7, 0.6)]
COMMANDS = {
    "synth": "synth --shape 24 32 40 --rng-seed 3 --out-image {out}.zarr --out-labels {out}-labels.zarr",
    "ingest": "ingest {in}/slices.npy --voxel-size 30 10 10 --out {out}.zarr",
    "membrane": "membrane --image {in}/raw.h5:raw --blur 20 --out {out}.zarr",
    "partition": "partition --labels {in}/labels.h5:labels --lom-radius 3 5 6 --min-label-um3 5e-05 --out {out}.zarr",
    "coordinates": "coordinates --partitions {made}/partition.zarr --membrane {made}/membrane.zarr "
    "--margin 3 5 6 --out {out}.h5",
    "records": "records --coordinates cube={made}/coordinates.h5 --num-shards 2 --max-records 500 --rng-seed 3 "
    "--out {out}",
    "train": "train --records {made}/records --volume cube={in}/raw.h5:raw,{in}/labels.h5:labels "
    f"{FOV} {STEPS} --rng-seed 3 --out {{out}}",
    "import-checkpoint": "import-checkpoint {made}/train/checkpoints/step-00000003 --out {out}",
    "select": "select --candidate 1={model},{in}/halves.json --candidate 2={model},{in}/bodies.json --out {out}",
    "normalize": "normalize --image {in}/raw.h5:raw --model {model} --normalize volume --out {out}.json",
    "segment": "segment --image {in}/raw.h5:raw --model {model} --precision float32 --min-segment-um3 5e-05 "
    "--out {out}.zarr",
    "reconcile": "reconcile {in}/left.zarr {in}/right.zarr --min-overlap-voxels 20 --min-component-um3 2e-05 "
    "--out {out}.zarr",
    "consensus": "consensus {in}/base.zarr {in}/labels.h5:labels --min-fragment-um3 5e-05 --out {out}.zarr",
    "agglomerate": "agglomerate --segmentation {in}/base.zarr --image {in}/raw.h5:raw --model {model} "
    "--precision float32 --window-radius 9 9 14 --min-overlap-depth 0 --out {out}.csv",
    "cut": "cut --segmentation {in}/pairs.zarr --image {in}/raw.h5:raw --model {model} --precision float32 "
    "--corrections {in}/cuts.csv --window-radius 9 9 14 --out {out}.csv",
    "merge": "merge {in}/graph.csv --segmentation {in}/base.zarr --mapping {out}.csv --out {out}.zarr",
    "sweep": "sweep {in}/graph.csv --segmentation {in}/base.zarr --truth {in}/labels.h5:labels --out {out}.json",
    "fill": "fill --segmentation {in}/labels.h5:labels --image {in}/raw.h5:raw --max-distance 30 --sigma 0 "
    "--out {out}.zarr",
    "joined/fill": "fill --segmentation {in}/joined.zarr --image {in}/raw.h5:raw --affinities {in}/affinities.zarr "
    "--out {out}.zarr",
    "learn-affinities": "learn-affinities --volume cube={in}/raw.h5:raw,{in}/labels.h5:labels,0:32,0:44,0:52 "
    "--max-steps 1 --rng-seed 3 --out {out}.h5",
    "affinities": "affinities --image {in}/raw.h5:raw --network {in}/network.h5 --box 5:25,0:16,0:14 --out {out}.zarr",
    "skeletonize": "skeletonize --labels {in}/labels.h5:labels --min-voxels 100 --out {out}.h5",
    "evaluate": "evaluate --segmentation {in}/base.zarr --truth {in}/labels.h5:labels --out {out}.json",
    "export": "export --image {in}/raw.h5:raw --segmentation {in}/labels.h5:labels --min-mesh-voxels 100 --out {out}",
}
ROUNDED = {(stage, "uint8") for stage in ("synth", "segment", "evaluate", "affinities")}  # whole numbers, rounded
# For each stage its revision, a hash of the whole numbers and texts that it makes, and a mean of all other numbers.
MADE = {
    "synth": (2, "001139cd7c8f", 136.8931100),
    "ingest": (4, "edd379b5dad2", 0.0),
    "membrane": (3, "b981a087dfc7", 11.1240786),
    "partition": (2, "75c9f0b7001b", 0.0),
    "coordinates": (2, "0080f86000c5", 0.0),
    "records": (3, "11f04beab0de", 0.0),
    "train": (5, "b4326bed531d", 0.3355432),
    "import-checkpoint": (1, "44136fa355b3", 0.3355432),
    "select": (1, "710b4e75b897", -1.9014086),
    "normalize": (1, "5c9f791775b9", 0.0),
    "segment": (7, "b3b93f10b759", 106.3707633),
    "reconcile": (6, "c5d9b15a49f0", 0.0),
    "consensus": (4, "affce797782a", 0.0),
    "agglomerate": (9, "a2fc3c0daf99", 0.0),
    "cut": (1, "b6555f9e9d36", 0.0),
    "merge": (5, "4c2962cbc2cf", 0.0),
    "sweep": (7, "f88ddebcb26e", 0.0),
    "fill": (11, "075099d06089", 0.0000000),
    "joined/fill": (11, "cdd836606119", 0.0),
    "learn-affinities": (2, "44136fa355b3", -0.1325192),
    "affinities": (2, "2db2e65dd0ac", 1166.4013393),
    "skeletonize": (2, "84444ea14768", 203.9671361),
    "evaluate": (9, "552768cd9be8", 0.0),
    "export": (9, "fd9985f0d951", 0.0),
}


def scene() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return an image, its bodies, and the same bodies cut in two: bright boxes, brightest inside, dark in between."""
    z, y, x = np.indices(SHAPE)
    depth = np.minimum.reduce([1 + np.minimum(z % 16, 15 - z % 16), 1 + np.minimum(y % 22, 21 - y % 22), 1 + x % 26])
    depth = np.minimum(depth, 26 - x % 26)
    image = np.where(depth > 2, 160 + 6 * np.minimum(depth, 8), 60).astype(np.uint8) + (x * 7 + y * 3 + z * 5) % 4
    bodies = np.where(depth > 2, 1 + z // 16 * 4 + y // 22 * 2 + x // 26, 0).astype(np.uint64)
    halves = np.where(bodies > 0, 2 * bodies + (y % 22 > 10), 0).astype(np.uint64)
    return image.astype(np.uint8), bodies, halves


def write(path: Path, arrays: dict[str, np.ndarray], box: Box = BOX, tables: dict | None = None) -> None:
    """Write volumes of one box to a file."""
    dtypes = {name: array.dtype for name, array in arrays.items()}
    with create_volumes(path, dtypes, Placement(box, SIZE), tables or {}) as writers:
        for name, array in arrays.items():
            writers[name].write(box, array[box.slices((0, 0, 0))])


def write_inputs(folder: Path) -> None:
    """Write what the commands read."""
    image, bodies, halves = scene()
    np.save(folder / "slices.npy", image)
    pairs = np.array([[2 * body, 2 * body + 1, 0, 24 * y, 24, 300] for body in range(1, 9) for y in (0, 1)], np.int64)
    write(folder / "raw.h5", {"raw": image})
    write(folder / "labels.h5", {"labels": bodies})
    write(folder / "base.zarr", {MAIN: halves}, tables={"overlaps": pairs})
    write(folder / "pairs.zarr", {MAIN: (bodies + 1) // 2})
    z, y, x = np.indices(SHAPE) // np.reshape((16, 11, 26), (3, 1, 1, 1))
    fragments = (1 + 8 * z + 2 * y + x).astype(np.uint64)  # two of each body, and all that is around them
    write(folder / "affinities.zarr", {"fragments": fragments, **dict.fromkeys("zyx", image)})
    write(folder / "joined.zarr", {MAIN: np.where(z, halves, (bodies + 1) // 2)})
    (folder / "cuts.csv").write_text(corrections_text([Correction("cut", (8, 11, 13), (8, 11, 39))]))
    evidence = Evidence(*[9] * 8, *[1.0] * 6, 0.0, 0.0, 0.0)
    edges = [MergeEdge(a, b, score, 0, 0, 0, 300, 9, 1.0, evidence).row() for a, b, score in GRAPH]
    (folder / "graph.csv").write_text(header({}) + "\n".join(edges) + "\n")
    truth = ["--truth", f"{folder}/labels.h5:labels", "--out"]
    for name, spec in (("halves", "base.zarr"), ("bodies", "labels.h5:labels")):
        assert main(["evaluate", "--segmentation", f"{folder}/{spec}", *truth, f"{folder}/{name}.json"]) == 0
    tables = {"origins": np.zeros((0, 6), np.int64), "overlaps": np.zeros((0, 6), np.int64)}
    for name, stop, start in (("left", 34, 0), ("right", 52, 18)):
        box = Box((0, 0, start), (32, 44, stop))
        write(folder / f"{name}.zarr", {MAIN: halves, "probability": image}, box, tables)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Function that returns what a stage makes; it runs at most once."""
    folder = tmp_path_factory.mktemp("revisions")
    places = {"in": folder / "in", "made": folder / "made", "model": folder / "in/model"}
    for name in ("in", "made"):
        places[name].mkdir()
    write_bright_model(places["model"])
    write_bright_affinities(places["in"] / "network.h5")
    write_inputs(places["in"])

    def make(stage: str) -> Path:
        out = places["made"] / stage
        if not list(places["made"].glob(f"{stage}*")):
            for earlier in re.findall(r"{made}/([a-z]+)", COMMANDS[stage]):
                make(earlier)
            assert main(shlex.split(COMMANDS[stage].format(out=out, **places))) == 0
        return out

    return make


def contents(out: Path) -> dict[str, np.ndarray]:
    """Return the arrays in what a stage has written, by their names: of volumes, tables, records and JSON files."""
    found: dict[str, np.ndarray] = {}
    folders = [out] if out.is_dir() else []
    for path in [*out.parent.glob(f"{out.name}[.-]*"), *(file for folder in folders for file in folder.glob("*"))]:
        if path.suffix == ".zarr":
            found |= store_contents(path, path.stem)
        elif path.suffix == ".h5":
            found |= arrays_of(path)
        elif path.suffix == ".json" and path.name not in ("index.json", "provenance.json"):
            found[path.name] = np.array([text_of(leaf) for leaf in walk(json.loads(path.read_text()))])
        elif path.suffix == ".csv" and path.name != "metrics.csv":
            found |= columns_of(path)
        elif path.suffix == ".gz":
            found |= dict(zip((f"{path.name} places", f"{path.name} volumes"), read_shard(path), strict=True))
        elif (path / "info").is_file() and (path / "segment_properties").is_dir():
            found[path.name] = read_scale(path, 0)
    return found


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """Return all datasets of an HDF5 file."""
    found: dict[str, np.ndarray] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def text_of(value: Any) -> str:
    """Return a value with four digits if it is a fraction: rounding elsewhere shows in the last ones of sixteen."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def walk(content: Any) -> list[Any]:
    """Return keys and values of a nested structure in their order, without provenance."""
    if isinstance(content, dict):
        return [leaf for key, value in content.items() if key != "provenance" for leaf in (key, *walk(value))]
    return [leaf for value in content for leaf in walk(value)] if isinstance(content, list) else [content]


def columns_of(path: Path) -> dict[str, np.ndarray]:
    """Return the columns of a table as texts."""
    rows = list(csv.reader(line for line in path.read_text().splitlines() if not line.startswith("#")))
    columns = zip(*rows, strict=True)
    return {name: np.array([text_of(float(v)) if "." in v else v for v in values]) for name, *values in columns}


def value_of(stage: str, array: np.ndarray) -> str | float:
    """Return a hash of whole numbers and texts, a weighted mean of other numbers."""
    if array.size and (array.dtype.kind == "f" or (stage, array.dtype.name) in ROUNDED):
        weights = 1 + np.arange(array.size) % 7
        return float((np.nan_to_num(array.ravel().astype(np.float64)) * weights).sum() / weights.sum())
    return hashlib.sha256(f"{array.shape} {array.tolist()}".encode()).hexdigest()[:12]


def summary(stage: str, arrays: dict[str, np.ndarray]) -> tuple[str, float]:
    """Return a hash of all whole numbers and texts, and a sum of the means of other numbers, each with its weight."""
    values = {name: value_of(stage, array) for name, array in sorted(arrays.items())}
    exact = {name: value for name, value in values.items() if isinstance(value, str)}
    means = [value for value in values.values() if isinstance(value, float)]
    digest = hashlib.sha256(repr(exact).encode()).hexdigest()[:12]
    return digest, float(sum(weight * mean for weight, mean in enumerate(means, 1)))


@pytest.mark.parametrize(
    "stage", [pytest.param(stage, marks=[pytest.mark.slow] * (stage == "learn-affinities")) for stage in COMMANDS]
)
def test_what_a_stage_makes_is_that_of_its_revision(stage, made):
    digest, mean = summary(stage, contents(made(stage)))
    of_revision, *expected = MADE.get(stage, (0, "", 0.0))
    now = revision(name := Path(stage).name)
    hint = f"if it is meant, raise REVISIONS[{name!r}] in ffn/provenance.py and put this into MADE: "
    hint += f'"{stage}": ({now}, "{digest}", {mean:.7f}),'
    assert (now, digest) == (of_revision, expected[0]), hint
    assert mean == pytest.approx(expected[1], rel=1e-4, abs=1e-6), hint


def test_every_stage_that_makes_values_is_compared():
    assert STAGES.keys() - COMMANDS.keys() == {"report"}
