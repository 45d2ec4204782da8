"""Measure what a run with many subvolumes costs before any voxel is computed.

    python benchmarks/many_subvolumes.py --per-axis 100 --folder /tmp/many

Plans a synthetic volume of that many subvolumes along each axis (100: a million in all), and as many boxes of
agglomeration, with a dry run. With ``--run``, it makes empty files for all stages up to the subvolumes, and lets
Snakemake run `reconcile` with a stand-in for `ffn`, which parses its arguments as `ffn` does and writes nothing but its
output. Prints time and memory of both, the longest shell line, and how many files the command was given.

``--tables IDS`` instead joins made-up tables of that many ids in each subvolume, without voxels or files: what the job
does that ends the step `match` of `ffn reconcile`. Prints time and memory.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import yaml

from ffn.assembly.reconcile import _global_ids
from ffn.assembly.tiling import Tiling
from ffn.config import ReconcileConfig
from ffn.geometry import Box, tile
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.places import check_sources
from ffn.workflow.run import load_run

ROOT = Path(__file__).resolve().parents[1]
SIZE, OVERLAP = 35, 14
MADE = ("synth", "membrane", "partition", "coordinates", "records", "train", "normalize", "segment")

STAND_IN = f"""#!{sys.executable}
import importlib, sys
from pathlib import Path
from ffn.cli import COMMANDS, Parser
name, *words = sys.argv[1:]
parser = Parser(fromfile_prefix_chars="@")
importlib.import_module(COMMANDS[name].module).add_arguments(parser)
given = parser.parse_args(words)
print("files:", len(given.subvolumes))
out = Path(given.out, "zarr.json")
out.parent.mkdir(parents=True, exist_ok=True)
out.write_text("made")
"""


def main() -> None:
    """Plan, run the two jobs and print the costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-axis", type=int, default=46, metavar="INT", help="subvolumes along each axis")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="folder to work in, which does not exist")
    parser.add_argument("--run", action="store_true", help="also run the jobs that are given all files")
    parser.add_argument("--tables", type=int, metavar="IDS", help="reconcile tables of so many ids in each subvolume")
    given = parser.parse_args()
    print(f"{given.per_axis**3} subvolumes")
    if given.tables:
        reconcile_tables(given.per_axis, given.tables)
        return
    given.folder.mkdir(parents=True)
    (given.folder / "run.yaml").write_text(yaml.safe_dump(configuration(given.per_axis)))
    output = snakemake(given.folder, "dry run", "-n", "-p", "export_all")
    print(f"longest shell line: {max(map(len, re.findall('^Shell command: (.*)', output, re.MULTILINE)))} characters")
    if not given.run:
        return
    make_inputs(given.folder)
    snakemake(given.folder, "reconcile", "reconcile_all")
    for log in sorted(given.folder.glob("results/many/logs/*/phantom.log")):
        print(f"{log.parent.name}: {log.read_text().strip()}")


def configuration(per_axis: int) -> dict:
    """Return the configuration of a run with that many subvolumes along each axis."""
    side = OVERLAP + (SIZE - OVERLAP) * per_axis
    volume = {"synthetic": {"shape_zyx": [side] * 3}, "train_box": "0:40,0:56,0:72", "evaluate_box": "none"}
    return {
        "run": "many",
        "volumes": {"phantom": volume},
        "model": {"depth": 2, "features": 8, "fov_size_zyx": [9, 11, 13], "deltas_zyx": [2, 3, 3]},
        "train": {"max_steps": 100, "permutable_axes": []},
        "subvolumes": {"size_zyx": [SIZE] * 3, "overlap_zyx": [OVERLAP] * 3},
        "agglomerate": {"enabled": True, "job_size_zyx": [SIZE - OVERLAP] * 3},
    }


def make_inputs(folder: Path) -> None:
    """Make the files of all stages before `reconcile`, each stage newer than the one before."""
    run = load_run(yaml.safe_load((folder / "run.yaml").read_text()))
    pipeline = Pipeline(run, check_sources(run))
    begin = time.time() - 1000
    for number, stage in enumerate(MADE):
        for path in map(folder.joinpath, pipeline.targets(stage)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("made")
            os.utime(path, (begin + number, begin + number))
    (folder / "bin").mkdir()
    (folder / "bin/ffn").write_text(STAND_IN)
    (folder / "bin/ffn").chmod(0o755)


def snakemake(folder: Path, what: str, *arguments: str) -> str:
    """Run Snakemake with the stand-in, print what it cost, and return its output."""
    places = ["--snakefile", str(ROOT / "Snakefile"), "--profile", str(ROOT / "profiles/local")]
    command = [sys.executable, "-m", "snakemake", *places, "--directory", str(folder), *arguments]
    path = f"{folder.resolve()}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--configfile", f"{folder}/run.yaml"], env=environment, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{what}: {time.monotonic() - begin:.0f} s, {used:.0f} s of one core, {after.ru_maxrss / 2**20:.2f} GiB at most"
    )
    return done.stdout + done.stderr


def reconcile_tables(per_axis: int, num_ids: int) -> None:
    """Join made-up tables: each id goes on in the neighbours behind every face, and one in all other neighbours."""
    side = OVERLAP + (SIZE - OVERLAP) * per_axis
    grid = tile(Box.from_shape((side,) * 3), (SIZE,) * 3, (OVERLAP,) * 3)
    z, y, x = (tuple(ranges) for ranges in grid.ranges_zyx)
    tiling = Tiling((z, y, x))
    ids = np.arange(1, num_ids + 1)
    shared: dict[int, list[np.ndarray]] = {}
    for first, second in tiling.overlaps():
        box = tiling.box(first).intersect(tiling.box(second))
        both = ids if sum(n == OVERLAP for n in box.shape) == 1 else ids[:1]
        columns = (second, both, both, *box.start, 5000)
        shared.setdefault(first, []).append(np.stack(np.broadcast_arrays(*columns), axis=1))
    made = []
    for index in range(tiling.num_boxes):
        place = tiling.core(index).start
        tables = {
            "ids": ids.astype(np.uint64),
            "voxels": np.full(num_ids, 10_000),
            "in_core": np.ones(num_ids, bool),
            "claims": np.concatenate(shared.pop(index, [np.empty((0, 7), np.int64)])),
            "origins": np.stack(np.broadcast_arrays(ids, *place, 9, 1), axis=1),
            "overlaps": np.stack(np.broadcast_arrays(ids, np.roll(ids, 1), *place, 300), axis=1),
        }
        made.append(tables)
    before, begin = memory_gib(), time.process_time()
    print(f"what the subvolumes left: {before:.2f} GiB", flush=True)
    found = _global_ids(tiling, made, ReconcileConfig())
    print(f"joined in {time.process_time() - begin:.1f} s of one core, {memory_gib():.2f} GiB at most")
    print(f"{len(found['numbers'])} ids, {len(np.unique(found['numbers']))} objects")


def memory_gib() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main()
