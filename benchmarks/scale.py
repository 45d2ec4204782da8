"""Measure the stages on phantoms of several sizes, from ingest to export, and fit how their costs grow.

    python benchmarks/scale.py --folder /tmp/scale --sides 250 500 1000

A phantom is one block of tissue and its mirror images, side by side, so that neurites go on from one to the next; it is
written block by block. An eighth of it is trained on, for two steps. Most neurites are given as `init_segmentation`,
and the demo's network grows the others. The watershed baseline, which covers at most 20 million voxels, is left out. So
the costs are those of all stages but of the network. Prints, for each side, jobs, wall and processor time, and peak
memory by stage, files and disk space by folder, and a checksum of all voxels that were written; then the exponents of
processor time against voxels, and what larger volumes would take.

    python benchmarks/scale.py --folder /tmp/jobs --sides 500 --jobs 1 2 4
    python benchmarks/scale.py --folder /tmp/kills --sides 250 --jobs 2 --kills 10

compare runs of one, two and four jobs side by side, or kill a run with all its processes at so many random moments,
repeat it each time, and compare it with an undisturbed one. Exits with 1 if voxels differ. A run that is there
already is only measured.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import yaml
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ffn.geometry import Box
from ffn.io.shards import shard_shape
from ffn.io.store import create_volume
from ffn.io.volume import Placement
from ffn.report.run_folder import StageCost, read_costs
from ffn.synthetic.config import SynthConfig
from ffn.synthetic.write import make_phantom

ROOT = Path(__file__).resolve().parents[1]
VOXEL_SIZE = (10.0, 10.0, 10.0)
LARGER = (1e9, 1e11, 1e13, 1e15)  # voxels
CONSTANT = ("train", "records", "normalize", "report")  # stages whose time does not grow with the volume
RUN = "results/scale"
# Stands for `ffn` in the jobs and writes down what each took, because Snakemake misses up to half a minute of a job.
MEASURED = """#!{python}
import resource, subprocess, sys
code = subprocess.call([{python!r}, "-m", "ffn", *sys.argv[1:]])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
with open({times!r}, "a") as file:
    file.write(f"{{sys.argv[1]}} {{used.ru_utime + used.ru_stime}}\\n")
sys.exit(code)
"""
# Folders and files whose names or contents tell when, where and in which jobs they were made.
RECORDS = {"blocks", "jobs", "lists", "logs", "benchmarks", "steps", "checkpoints"}
TIMED = {"metrics.csv", "validation.csv"}


def main() -> None:
    """Make the phantoms, run the workflow on each, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="folder to work in")
    parser.add_argument("--sides", type=int, nargs="+", default=[250, 500], metavar="INT", help="voxels")
    parser.add_argument("--jobs", type=int, nargs="+", default=[2], metavar="INT", help="jobs at the same time")
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="also kill a run so many times")
    parser.add_argument("--tile", type=int, default=250, metavar="INT", help="side of the block of tissue, voxels")
    parser.add_argument("--grown", type=float, default=0.004, metavar="SHARE", help="neurites that the network grows")
    given = parser.parse_args()
    costs: dict[int, list[StageCost]] = {}
    differ = False
    for side in given.sides:
        phantom = given.folder / f"phantom-{side}"
        if not phantom.is_dir():
            write_phantom(phantom, side, given.tile, given.grown)
        runs = [(jobs, 0) for jobs in given.jobs] + [(jobs, given.kills) for jobs in given.jobs[-1:] if given.kills]
        digests = set()
        for jobs, kills in runs:
            folder = given.folder / f"run-{side}-{jobs}{'-killed' * bool(kills)}"
            seconds = run_workflow(folder, phantom, side, jobs, kills)
            print(f"\n{side}³ voxels, {jobs} jobs at the same time, killed {kills} times")
            costs[side] = exactly(read_costs(folder / RUN), folder)
            print_costs(costs[side], seconds)
            print_disk(folder / RUN, side**3)
            digests.add(digest := digest_of(folder / RUN))
            print(f"checksum of what was written: {digest}", flush=True)
        differ |= len(digests) > 1
    if len(costs) > 1:
        print_exponents(costs)
    print_larger(costs[max(costs)], max(costs) ** 3, folder / RUN)
    sys.exit("the runs of a side differ" if differ else 0)


def write_phantom(folder: Path, side: int, tile: int, grown: float) -> None:
    """Write ``raw.zarr``, ``labels.zarr`` and ``given.zarr``: a phantom and its mirror images, block by block."""
    counts = -(-side // tile)
    made = make_phantom(SynthConfig(shape_zyx=(tile,) * 3, voxel_size_zyx_nm=VOXEL_SIZE), 1)
    labels = made.labels.astype(np.int32)
    table = ids_of_tiles(labels, counts)
    inside = np.where(touches_another(labels) | ~given_ids(labels, grown)[labels], 0, labels)
    place = Placement(Box.from_shape((side,) * 3), VOXEL_SIZE, {})
    folder = folder.with_name(f"{folder.name}.partial")
    with (
        create_volume(f"{folder}/raw.zarr", np.uint8, place) as raw,
        create_volume(f"{folder}/labels.zarr", np.uint64, place) as truth,
        create_volume(f"{folder}/given.zarr", np.uint64, place) as known,
    ):
        for box in place.box.blocks(shard_shape(place.box.shape, 8)):
            along = [mirrored(start, stop, tile) for start, stop in zip(box.start, box.stop, strict=True)]
            index = np.ix_(*(within for _, within in along))
            number = np.ravel_multi_index(np.ix_(*(tiles for tiles, _ in along)), (counts,) * 3)
            raw.write(box, made.image[index])
            truth.write(box, table[number, labels[index]])
            known.write(box, table[number, inside[index]])
    folder.rename(folder.with_name(folder.name.removesuffix(".partial")))


def mirrored(start: int, stop: int, tile: int) -> tuple[np.ndarray, np.ndarray]:
    """Return, for the voxels along an axis, the number of the tile and the position in it; odd tiles are reversed."""
    tiles, within = np.divmod(np.arange(start, stop), tile)
    return tiles, np.where(tiles % 2, tile - 1 - within, within)


def ids_of_tiles(labels: np.ndarray, counts: int) -> np.ndarray:
    """Return the id of each label in each tile, uint64 of shape (tiles, labels): one id where a face joins them."""
    num = int(labels.max()) + 1
    numbers = np.arange(counts**3).reshape((counts,) * 3)
    edges = [np.empty((0, 2), int)]
    for axis in range(3):
        faces = [np.unique(np.take(labels, end, axis)) for end in (-1, 0)]  # an even tile ends, an odd one begins
        for position, (left, right) in enumerate(pairwise(np.moveaxis(numbers, axis, 0))):
            ids = faces[position % 2]
            pairs = np.stack([left.ravel(), right.ravel()], axis=1)
            edges.append((pairs[:, None] * num + ids[:, None]).reshape(-1, 2))
    joined = np.concatenate(edges)
    graph = coo_array((np.ones(len(joined)), joined.T), shape=(counts**3 * num,) * 2)
    ids = connected_components(graph, directed=False)[1].reshape(-1, num).astype(np.uint64) + 1
    ids[:, 0] = 0
    return ids


def touches_another(labels: np.ndarray) -> np.ndarray:
    """Return which voxels have a neighbour of another label, so that given segments do not touch."""
    found = np.zeros(labels.shape, bool)
    for axis in range(3):
        ids, marks = np.moveaxis(labels, axis, 0), np.moveaxis(found, axis, 0)
        differs = ids[1:] != ids[:-1]
        marks[1:] |= differs
        marks[:-1] |= differs
    return found


def given_ids(labels: np.ndarray, grown: float) -> np.ndarray:
    """Return which labels are given; the others are spread evenly over all."""
    ids = np.arange(labels.max() + 1)
    return np.floor(ids * grown) == np.floor((ids + 1) * grown)


def run_workflow(folder: Path, phantom: Path, side: int, jobs: int, kills: int) -> float | None:
    """Run the workflow to its end; return how long that took, s, or None if it was done before."""
    if (folder / "done").exists():
        return float((folder / "done").read_text())
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    script = folder / "bin/ffn"
    script.write_text(MEASURED.format(python=sys.executable, times=str(folder.resolve() / "times")))
    script.chmod(0o755)
    (folder / "run.yaml").write_text(yaml.safe_dump(configuration(phantom.resolve(), side, jobs)))
    others = sorted(folder.parent.glob(f"run-{side}-{jobs}/done"))
    moments = random.Random(0)
    for number in range(kills):
        running = start(folder, jobs)
        time.sleep(moments.uniform(0.2, 1.8) / kills * float(others[0].read_text()))  # so that most find it running
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
        print(f"killed after {number + 1} starts" if running.wait() < 0 else "had ended", flush=True)
    begin = time.monotonic()
    if start(folder, jobs).wait():
        sys.exit(f"Snakemake failed, see {folder}/snakemake.log")
    seconds = time.monotonic() - begin
    (folder / "done").write_text(str(seconds))
    return seconds


def start(folder: Path, jobs: int) -> subprocess.Popen[bytes]:
    """Start the workflow in a process group of its own."""
    places = ["--snakefile", str(ROOT / "Snakefile"), "--profile", str(ROOT / "profiles/local")]
    command = [sys.executable, "-m", "snakemake", *places, "--directory", str(folder), "--cores", str(jobs)]
    path = f"{folder.resolve()}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (folder / "snakemake.log").open("ab") as log:
        return subprocess.Popen(
            [*command, "--configfile", f"{folder}/run.yaml"],
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def exactly(costs: list[StageCost], folder: Path) -> list[StageCost]:
    """Give each rule its share of the processor time that its stage took; of a run that was killed, it is less."""
    taken: dict[str, float] = defaultdict(float)
    for line in (folder / "times").read_text().splitlines():
        stage, seconds = line.split()
        taken[stage] += float(seconds)
    sampled: dict[str, float] = defaultdict(float)
    for cost in costs:
        sampled[stage_of(cost.stage)] += cost.cpu_seconds + 0.1  # no rule has none
    return [
        cost._replace(
            cpu_seconds=taken[stage_of(cost.stage)] * (cost.cpu_seconds + 0.1) / sampled[stage_of(cost.stage)],
        )
        for cost in costs
    ]


def stage_of(rule: str) -> str:
    """Return the stage of a rule, as in ``fill_blocks`` and ``fill``."""
    return rule.removesuffix("_blocks").removesuffix("_labels")


def configuration(phantom: Path, side: int, jobs: int) -> dict:
    """Return a run of all stages over the whole phantom; if one job runs at a time, it does all of its stage."""
    volume = {
        "image": f"{phantom}/raw.zarr",
        "labels": f"{phantom}/labels.zarr",
        "init_segmentation": f"{phantom}/given.zarr",
        "train_box": ",".join([f"0:{side // 2}"] * 3),
    }
    demo = yaml.safe_load((ROOT / "config.yaml").read_text())
    kept = ("partition", "coordinates", "model", "segment", "reconcile", "agglomerate", "fill")
    return {
        "run": "scale",
        "init": str(ROOT / "config/demo-weights"),
        "volumes": {"phantom": volume},
        "train": {"max_steps": 2},
        "evaluate": {"watershed": False},
        "subvolumes": {"size_zyx": [256] * 3, "overlap_zyx": [32] * 3},
        **{name: demo[name] for name in kept},
        **({"workflow": {"max_jobs_per_stage": 1}} if jobs == 1 else {}),
    }


def print_costs(costs: list[StageCost], seconds: float | None) -> None:
    """Print one line for each stage."""
    print(f"{'stage':<24}{'jobs':>6}{'wall s':>10}{'CPU s':>10}{'longest s':>11}{'peak MiB':>10}")
    for cost in costs:
        peak = f"{cost.peak_mib:.0f}" if cost.peak_mib else "-"
        times = f"{cost.seconds:>10.0f}{cost.cpu_seconds:>10.0f}{cost.longest_seconds:>11.0f}"
        print(f"{cost.stage:<24}{cost.num_jobs:>6}{times}{peak:>10}")
    print(f"all stages: {seconds:.0f} s, {sum(cost.cpu_seconds for cost in costs):.0f} s of processor time")


def print_disk(results: Path, voxels: int) -> None:
    """Print files and what they occupy, by folder, in bytes for each voxel: the image has one."""
    print(f"{'folder':<24}{'files':>8}{'bytes/voxel':>13}")
    for name, (files, size) in disk_use(results).items():
        print(f"{name:<24}{files:>8}{size / voxels:>13.3f}")


def disk_use(results: Path) -> dict[str, tuple[int, int]]:
    """Return the number of files in each folder of a run and in all, and the bytes that they occupy."""
    found = {}
    for folder in sorted(path for path in results.iterdir() if path.is_dir()):
        sizes = [path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()]
        found[folder.name] = (len(sizes), sum(sizes))
    return {**found, "all": (sum(files for files, _ in found.values()), sum(size for _, size in found.values()))}


def digest_of(results: Path) -> str:
    """Return a checksum of all volumes, meshes, skeletons and tables of a run."""
    found = hashlib.sha256()
    for path in sorted(results.rglob("*")):
        parts = path.relative_to(results).parts
        is_record = path.suffix in (".json", ".yaml", ".html") or set(parts) & (RECORDS | TIMED)
        if path.is_file() and not is_record:
            found.update("/".join(parts).encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def of_stages(costs: list[StageCost]) -> dict[str, StageCost]:
    """Add up the rules of each stage that grows with the volume: ``fill_blocks`` and ``fill``."""
    found: dict[str, StageCost] = {}
    for cost in costs:
        name = stage_of(cost.stage)
        before = found.get(name, StageCost(name, 0, 0.0, 0.0, 0.0, 0.0))
        found[name] = StageCost(
            name,
            before.num_jobs + cost.num_jobs,
            before.seconds + cost.seconds,
            max(before.longest_seconds, cost.longest_seconds),
            max(before.peak_mib or 0, cost.peak_mib or 0),
            before.cpu_seconds + cost.cpu_seconds,
        )
    return {name: cost for name, cost in found.items() if name not in CONSTANT}


def print_exponents(costs: dict[int, list[StageCost]]) -> None:
    """Print by which power of the number of voxels the processor time of each stage grows."""
    print("\nprocessor time grows with the voxels to the power of (over all sides, and at the end)")
    sides, stages = sorted(costs), {side: of_stages(found) for side, found in costs.items()}
    for name in stages[sides[-1]]:
        times = [stages[side][name].cpu_seconds if name in stages[side] else 0 for side in sides]
        if min(times) > 0:
            steps = np.diff(np.log(times)) / np.diff(3 * np.log(sides))
            whole = np.polyfit(3 * np.log(sides), np.log(times), 1)[0]
            print(f"{name:<24}{whole:>8.2f}{steps[-1]:>8.2f}")


def print_larger(costs: list[StageCost], voxels: int, results: Path) -> None:
    """Print jobs, processor time, files and disk space of larger volumes, if they grow as the voxels do."""
    print("\n| stage | peak MiB |" + "".join(f" {n:.0e}: jobs, core-hours |" for n in LARGER))
    for name, cost in of_stages(costs).items():
        cells = [
            f"{min(1000, round(cost.num_jobs * n / voxels))}, {cost.cpu_seconds / 3600 * n / voxels:.2g}"
            for n in LARGER
        ]
        print(f"| {name} | {cost.peak_mib or 0:.0f} | {' | '.join(cells)} |")
    files, size = disk_use(results)["all"]
    print(f"| files | | {' | '.join(f'{files * n / voxels:.2g}' for n in LARGER)} |")
    print(f"| bytes | | {' | '.join(f'{size * n / voxels:.2g}' for n in LARGER)} |")


if __name__ == "__main__":
    main()
