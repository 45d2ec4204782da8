#!/usr/bin/env python3
"""Submit a job script of Snakemake and print the job's id."""

import sys

from ffn.cluster import batch
from ffn.cluster import cobalt as scheduler  # `ffn doctor` asks for it, too

if __name__ == "__main__":
    sys.exit(batch.submit(scheduler, sys.argv[1:]))
