"""Measure what a run with many subvolumes costs before any voxel is computed.

    python benchmarks/many_subvolumes.py --per-axis 100 --folder /tmp/many

Plans a synthetic volume of that many subvolumes along each axis (100: a million in all), and as many boxes of
agglomeration, with a dry run. With ``--run``, it makes empty files for all stages up to the subvolumes, and lets
Snakemake run `reconcile` with a stand-in for `ffn`, which parses its arguments as `ffn` does and writes nothing but its
output. Prints time and memory of both, the longest shell line, and how many files the command was given.

``--tables IDS`` instead joins made-up tables of that many ids in each subvolume, without voxels: what the job does that
ends the step `match` of `ffn reconcile`. The tables are made while they are read, and making them does not count. With
``--records``, jobs have left them in the folder, which takes hours for a million. Prints time and memory.

``--pieces NUM`` instead ends the step `label` of `ffn reconcile` with so many made-up pieces of segments in each of as
many blocks, three links each. Prints time, and the memory that it takes for a piece.

``--overlaps NUM`` instead lets a job of `ffn agglomerate` read its part of a table with so many made-up overlaps for
each subvolume. Prints time and memory.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import yaml

from ffn.assembly.components import _joined
from ffn.assembly.config import ReconcileConfig
from ffn.assembly.contacts import read_overlaps, searched
from ffn.assembly.reconcile import MATCH, global_ids
from ffn.assembly.subvolumes import SubvolumeTables, Tiling
from ffn.geometry import Box, cell_shape, tile
from ffn.io.block_log import Result
from ffn.io.blocks import reduce_step
from ffn.io.open import open_volume
from ffn.io.scratch import Table, Tables
from ffn.io.store import Store
from ffn.io.store_names import MAIN
from ffn.io.volume import Placement
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
    parser.add_argument("--records", action="store_true", help="with --tables: read them from records of jobs")
    parser.add_argument("--tables", type=int, metavar="IDS", help="reconcile tables of so many ids in each subvolume")
    parser.add_argument("--pieces", type=int, metavar="NUM", help="end labelling with so many pieces in each block")
    parser.add_argument("--overlaps", type=int, metavar="NUM", help="read overlaps, so many for each subvolume")
    given = parser.parse_args()
    print(f"{given.per_axis**3} subvolumes")
    if given.tables:
        reconcile_tables(given.per_axis, given.tables, given.folder, given.records)
        return
    if given.pieces:
        end_labelling(given.per_axis**3, given.pieces)
        return
    if given.overlaps:
        time_overlaps(given.per_axis, given.overlaps, str(given.folder / "base.zarr"))
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


def reconcile_tables(per_axis: int, num_ids: int, folder: Path, with_records: bool) -> None:
    """Join made-up tables, and print what the end of the step costs."""
    tiling = cubes(per_axis)
    boxes = list(tiling)
    numbers = {box.start: index for index, box in enumerate(boxes)}
    neighbours: dict[tuple[int, ...], np.ndarray] = {}
    begin: dict[str, float] = {}
    store = folder / "r.zarr"
    store.mkdir(parents=True)

    def look(box: Box) -> Result:
        index = numbers[box.start]
        place = tuple(int(i > 0) + int(i == per_axis - 1) for i in np.unravel_index(index, tiling.shape))
        if place not in neighbours:
            neighbours[place] = claims_of(tiling, index, num_ids)
        return {**tables_of(box, num_ids), "claims": neighbours[place] + (index, 0, 0, *box.start, 0)}

    def make() -> Iterator[Result]:
        for box in boxes:
            started = time.process_time()
            results = look(box)
            begin["end of the step"] += time.process_time() - started
            yield results

    def combine(results: Iterable[Result]) -> dict[str, Table]:
        print(f"before the end of the step: {memory_gib():.2f} GiB at most", flush=True)
        begin["end of the step"], begin["wall"] = time.process_time(), time.monotonic()
        tables = SubvolumeTables(results if with_records else make(), store)
        return global_ids(tables, tiling, ReconcileConfig(), store)

    found = reduce_step(str(store), MATCH, boxes if with_records else [], look, combine, {})
    assert found is not None
    used, lasted = time.process_time() - begin["end of the step"], time.monotonic() - begin["wall"]
    print(f"joined in {used:.1f} s of one core, {lasted:.1f} s in all, {memory_gib():.2f} GiB at most")
    ids = found.read("numbers")
    print(f"{len(ids)} ids, {len(np.unique(ids))} objects, tables {found.digest}")


def end_labelling(num_blocks: int, num_pieces: int) -> None:
    """Join made-up pieces, and print what that costs; making them counts in the time."""
    empty = np.empty((0, 6), np.int64)
    nothing = {"origins": empty, "overlaps": empty}
    rng = np.random.default_rng(0)

    def results() -> Iterator[Result]:
        for block in range(num_blocks):
            links = rng.integers(num_pieces, size=3 * num_pieces), rng.integers(4 * num_pieces, size=3 * num_pieces)
            yield {
                "objects": np.arange(1, num_pieces + 1) + block * num_pieces // 2,
                "voxels": rng.integers(1, 10**5, num_pieces),
                "first": np.arange(num_pieces) + block * num_pieces,
                "links": np.stack(links, axis=1) + (0, 2 * block * num_pieces),
            }

    before, begin = memory_gib(), time.process_time()
    ids = _joined(results(), Tables(nothing), 1000, None)["ids"]
    each = (memory_gib() - before) * 2**30 / len(ids)
    print(f"{len(ids)} pieces: {time.process_time() - begin:.1f} s of one core, {each:.0f} bytes each")


def time_overlaps(per_axis: int, num_rows: int, path: str) -> None:
    """Write a table of overlaps, read what a job in the middle of the volume needs of it, and print what that costs."""
    rng, side, size = np.random.default_rng(0), 224 * per_axis + 32, (8.0, 8.0, 8.0)
    box, job = Box.from_shape((side,) * 3), Box((side // 2,) * 3, (side // 2 + 512,) * 3)
    if not os.fork():  # what writing takes is not counted
        cell = cell_shape(size)
        cells = rng.integers(0, side // np.array(cell), (per_axis**3 * num_rows, 3)) * cell
        rows = np.column_stack([rng.integers(1, 9, (len(cells), 2)) + (0, 9), cells, rng.integers(1, 500, len(cells))])
        store = Store(Path(path), "base", {MAIN: np.uint64}, Placement(box, size))
        store.make_arrays()
        store.finish({"overlaps": rows}, {})
        os._exit(0)
    os.wait()
    with open_volume(path) as base:
        before, begin, used = memory_gib(), time.monotonic(), time.process_time()
        claims = read_overlaps(path, searched(base, job))
    used, lasted = time.process_time() - used, time.monotonic() - begin
    print(f"{len(claims)} of {per_axis**3 * num_rows} overlaps in {used:.2f} s of one core, {lasted:.2f} s in all")
    print(f"{1024 * (memory_gib() - before):.0f} MiB")


def cubes(per_axis: int) -> Tiling:
    """Return that many overlapping cubes along each axis."""
    side = OVERLAP + (SIZE - OVERLAP) * per_axis
    z, y, x = (tuple(ranges) for ranges in tile(Box.from_shape((side,) * 3), (SIZE,) * 3, (OVERLAP,) * 3).ranges_zyx)
    return Tiling((z, y, x))


def claims_of(tiling: Tiling, index: int, num_ids: int) -> np.ndarray:
    """Let each id go on in the neighbours behind every face, and one in all others; from a subvolume's place on."""
    ids, own, found = np.arange(1, num_ids + 1), tiling[index], [np.empty((0, 7), np.int64)]
    for other in tiling.overlapped_by(index):
        box = own.intersect(tiling[other])
        both = ids if sum(n == OVERLAP for n in box.shape) == 1 else ids[:1]
        columns = (other - index, both, both, *np.subtract(box.start, own.start), 5000)
        found.append(np.stack(np.broadcast_arrays(*columns), axis=1))
    return np.concatenate(found)


def tables_of(box: Box, num_ids: int) -> Result:
    """Return ids and tables of one subvolume."""
    ids = np.arange(1, num_ids + 1)
    origins, overlaps = np.full((num_ids, 6), (0, *box.start, 9, 1)), np.full((num_ids, 6), (0, 0, *box.start, 300))
    origins[:, 0], overlaps[:, 0], overlaps[:, 1] = ids, ids, np.roll(ids, 1)
    sizes = {"voxels": np.full(num_ids, 10_000), "in_core": np.ones(num_ids, bool)}
    return {"ids": ids.astype(np.uint64), **sizes, "origins": origins, "overlaps": overlaps}


def memory_gib() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main()
