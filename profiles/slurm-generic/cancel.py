#!/usr/bin/env python3
"""Cancel jobs."""

import sys

from ffn.cluster import batch, slurm

sys.exit(batch.cancel(slurm, sys.argv[1:]))
