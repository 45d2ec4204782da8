"""Snakemake that asks Slurm about its jobs every second; the plugin's own pause grows by ten seconds each time.

Run as ``python -m tests.cluster.impatient ARGUMENTS`` on the login node, instead of ``python -m snakemake``.
"""

import sys

from snakemake.cli import main
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

SECONDS = 1.0

if __name__ == "__main__":
    RemoteExecutor.next_seconds_between_status_checks = property(lambda self: SECONDS, lambda self, value: None)
    sys.exit(main())
