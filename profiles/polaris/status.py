#!/usr/bin/env python3
"""Print running, success or failed for one job."""

import sys

from ffn.cluster import batch, pbs

sys.exit(batch.status(pbs, sys.argv[1:]))
