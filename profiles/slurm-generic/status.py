#!/usr/bin/env python3
"""Print running, success or failed for one job."""

import sys

from ffn.cluster import batch, slurm

sys.exit(batch.status(slurm, sys.argv[1:]))
