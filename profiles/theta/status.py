#!/usr/bin/env python3
"""Print running, success or failed for one job."""

import sys

from ffn.cluster import batch, cobalt

sys.exit(batch.status(cobalt, sys.argv[1:]))
