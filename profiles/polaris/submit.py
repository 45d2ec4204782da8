#!/usr/bin/env python3
"""Submit a job script of Snakemake and print the job's id."""

import sys

from ffn.cluster import batch, pbs

sys.exit(batch.submit(pbs, sys.argv[1:]))
