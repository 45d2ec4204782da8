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
LAUNCHED = (
    "mpiexec -n 2 --ppn 2 --depth 16 --cpu-bind depth --env OMP_NUM_THREADS=16 --env KMP_BLOCKTIME=0 "
    "--env CUDA_VISIBLE_DEVICES=3,2,1,0 ffn train "
)
SUBMITTED = (
    "qsub -l select=1:ncpus=32:mpiprocs=2:ngpus=4:system=polaris -l place=scatter -l walltime=24:00:00 "
    "-l filesystems=home:eagle -r y -N ffn-train -j oe -o ffn-train.log -q preemptable -A brains ffn-train.sh"
)
# The entries of the queue, in the order of submission.
ENTRIES = ["synth", "prepare", "train", "normalize", "segment", "reconcile", "assess"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("needs_mpi")
def test_polaris_on_processes_of_this_machine(tmp_path):
    site = Site(tmp_path / "polaris")
    (site.folder / "run.yaml").write_text(yaml.safe_dump(TINY_RUN))
    places = ["--snakefile", str(ROOT / "Snakefile"), "--configfile", "run.yaml"]
    site.run("--set-threads", "segment=1", "agglomerate=1", *places)
    results = site.folder / "results/tiny"
    assert json.loads((results / "evaluation/phantom.json").read_text())["scores"]
    assert (results / "report.html").exists()
    submitted = site.transcript("qsub")
    assert [re.search(r"-N ffn-(\w+)", line)[1] for line in submitted] == ENTRIES
    (training,) = [line for line in submitted if "ffn-train " in line]
    assert re.sub(r"(ffn-train)-[0-9a-f]{8}", r"\1", training) == SUBMITTED
    (launched,) = [line for line in site.transcript("mpiexec") if " ffn train " in line]
    assert launched.startswith(LAUNCHED)
