"""Strong scaling of training over emulated nodes: the same global batch on 1, 2 and 3 nodes of a mini Slurm cluster.

Needs root and Slurm (docs/profiles/slurm.md). The nodes share this machine's cores, one thread per rank. With more
nodes than cores, the figures show the cost of sharing cores, not that of the network.

    python -m benchmarks.cluster_scaling --steps 60
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.mini_slurm import MiniSlurm, unavailable

GLOBAL_BATCH = 12
MODEL = "--depth 4 --features 16 --fov-size 17 17 17 --deltas 4 4 4".split()
FFN = [sys.executable, "-m", "ffn"]
DATA = [
    "synth --shape 64 80 96 --out-image {0}/raw.h5:raw --out-labels {0}/labels.h5:labels",
    "membrane --image {0}/raw.h5:raw --out {0}/membrane.h5",
    "partition --labels {0}/labels.h5:labels --lom-radius 12 12 12 --min-size 100 --out {0}/partitions.h5:partitions",
    "coordinates --partitions {0}/partitions.h5:partitions --membrane {0}/membrane.h5 --margin 12 12 12 --out {0}/c.h5",
    "records --coordinates data={0}/c.h5 --num-shards 6 --max-records 3000 --out {0}/records",
]


def main() -> None:
    """Measure, and print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    if reason := unavailable():
        sys.exit(f"cluster_scaling: {reason}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for command in DATA:
            subprocess.run([*FFN, *command.format(folder).split()], check=True, capture_output=True)
        with MiniSlurm(folder / "slurm", max(arguments.nodes)) as cluster:
            rates = {nodes: rate(cluster, folder, nodes, arguments.steps) for nodes in arguments.nodes}
    first = min(rates)
    print(f"{os.cpu_count()} cores, global batch {GLOBAL_BATCH}, {arguments.steps} steps, 1 rank per node, 1 thread")
    print("nodes  FOVs/s  speed-up  efficiency")
    for nodes, speed in rates.items():
        gain = speed / rates[first]
        print(f"{nodes:5}  {speed:6.1f}  {gain:8.2f}  {gain * first / nodes:10.0%}")
    print(json.dumps({"fovs_per_second": rates}))


def rate(cluster: MiniSlurm, folder: Path, nodes: int, steps: int) -> float:
    """Return the FOVs per second of the second half of a training on `nodes` nodes."""
    out = folder / f"model-{nodes}"
    launch = [
        "salloc",
        "--quiet",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "srun",
        "--mpi=pmix",
        "--kill-on-bad-exit=1",
    ]
    data = f"--records {folder}/records --volume data={folder}/raw.h5:raw,{folder}/labels.h5:labels --out {out}"
    sizes = f"--num-workers {nodes} --batch-size {GLOBAL_BATCH // nodes} --max-steps {steps} --log-steps {steps // 2}"
    options = [*data.split(), *sizes.split(), *MODEL, "--checkpoint-steps", str(steps)]
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd(), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = cluster.run(*launch, *FFN, "train", *options, timeout=900, variables=variables)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    with (out / "metrics.csv").open() as file:
        return float(list(csv.DictReader(file))[-1]["fovs_per_second"])


if __name__ == "__main__":
    main()
