"""``python -m ffn``: the same as the `ffn` command."""

import sys

from ffn.cli import main

sys.exit(main())
