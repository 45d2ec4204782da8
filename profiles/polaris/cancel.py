#!/usr/bin/env python3
"""Cancel jobs."""

import sys

from ffn.cluster import batch, pbs

sys.exit(batch.cancel(pbs, sys.argv[1:]))
