"""The whole pipeline with a batch profile, and the commands that its scheduler gets."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from ..small_run import ROOT, SMALL_RUN
from .batch import Site

TINY_RUN = {
    **SMALL_RUN,
    "run": "tiny",
    "volumes": {
        "phantom": {
            "synthetic": {"shape_zyx": [40, 44, 48]},
            "train_box": "0:32,0:44,0:48",
            "evaluate_box": "8:32,8:36,8:40",
        }
    },
    "records": {"num_shards": 2, "max_records": 500},
    "train": {**SMALL_RUN["train"], "batch_size": 2, "max_steps": 20, "checkpoint_steps": 10, "log_steps": 10},
    "subvolumes": {"size_zyx": [40, 44, 32], "overlap_zyx": [14, 14, 14]},
    "agglomerate": {"enabled": False},
    "fill": {"max_distance_nm": 0},
    "evaluate": {"watershed": False},
    "skeletonize": {"spacing_nm": 0},
    "export": {"min_mesh_voxels": 10**9},
}
LAUNCHED = "aprun -n 2 -N 1 -d 64 -j 1 -cc depth -e OMP_NUM_THREADS=64 -e KMP_BLOCKTIME=0 ffn train "
COBALT = "qsub -n {nodes} -t {minutes} --mode script --jobname {name} -o {log} -e {log} -q {queue} -A brains"
# The entries of the queue, in the order of submission.
ENTRIES = ["synth", "prepare", "train", "normalize", "segment", "reconcile", "assess"]


def job_names(lines: list[str]) -> list[str]:
    """Return the names of the jobs in qsub lines without their prefix."""
    return [re.search(r"--jobname ffn-(\w+)", line)[1] for line in lines]


def run_pipeline(site: Site) -> None:
    """Run the tiny pipeline and check that it made everything."""
    (site.folder / "run.yaml").write_text(yaml.safe_dump(TINY_RUN))
    places = ["--snakefile", str(ROOT / "Snakefile"), "--configfile", "run.yaml"]
    site.run("--set-threads", "segment=1", "agglomerate=1", *places)
    results = site.folder / "results/tiny"
    assert json.loads((results / "evaluation/phantom.json").read_text())["scores"]
    assert "<html" in (results / "report.html").read_text().lower()


def submission(site: Site, name: str) -> str:
    """Return the one qsub line of a job, its file names without their unique part."""
    (line,) = [line for line in site.transcript("qsub") if f"ffn-{name} " in line]
    return re.sub(rf"(ffn-{name})-[0-9a-f]{{8}}", r"\1", line)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("needs_mpi")
def test_theta_on_local_processes(tmp_path):
    site = Site(tmp_path / "theta", "theta")
    run_pipeline(site)
    assert job_names(site.transcript("qsub")) == ENTRIES
    (launched,) = [line for line in site.transcript("aprun") if " ffn train " in line]
    assert launched.startswith(LAUNCHED)
    files = {"name": "ffn-train", "log": "ffn-train.log"}
    attrs = "--attrs mcdram=cache:numa=quad ffn-train.sh"
    long = {"minutes": 180, "queue": "default"}  # no queue has two nodes for six hours
    assert submission(site, "train") == f"{COBALT.format(nodes=2, **long, **files)} {attrs}"
    assert submission(site, "segment").startswith("qsub -n 2 -t 180 "), "one job for both subvolumes"
    segments = [line for line in site.transcript("aprun") if " ffn segment " in line]
    assert len(segments) == 2
    assert all(line.startswith("aprun -n 1 -N 1 -d 64 -j 1 -cc none ffn segment ") for line in segments)
    single = site.transcript("aprun")[0]
    assert re.fullmatch(r"aprun -n 1 -N 1 -d 1 -j 1 -cc none sh ffn-synth-\w+\.job", single)
