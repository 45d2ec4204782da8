"""Run a command on the login node of a mini Slurm cluster, for as long as the command takes.

python -m tests.cluster.mini_slurm --nodes 3 snakemake --profile slurm
python -m tests.cluster.mini_slurm            # a shell; STATE/login COMMAND reaches the cluster from elsewhere
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .cluster import MiniSlurm, unavailable


def main() -> int:
    """Bring the cluster up, run the command, take the cluster down; return the command's exit code."""
    parser = argparse.ArgumentParser(
        prog="mini_slurm", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--cpus", type=int, default=2, help="that each node says it has")
    parser.add_argument("--state", help="folder of the cluster's files (default: a temporary one)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if reason := unavailable():
        print(f"mini_slurm: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="mini-slurm-") as temporary:
        with MiniSlurm(Path(arguments.state or temporary), arguments.nodes, arguments.cpus) as cluster:
            print(f"mini_slurm: {arguments.nodes} nodes, {cluster.state}/login COMMAND", file=sys.stderr)
            command = arguments.command or [os.environ.get("SHELL", "bash")]
            return subprocess.call(cluster.login(*command), env=cluster.environment())


if __name__ == "__main__":
    sys.exit(main())
