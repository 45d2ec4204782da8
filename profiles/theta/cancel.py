#!/usr/bin/env python3
"""Cancel jobs."""

import sys

from ffn.cluster import batch, cobalt

sys.exit(batch.cancel(cobalt, sys.argv[1:]))
