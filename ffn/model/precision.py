"""Which number format this machine's CPU is fast in."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

log = logging.getLogger(__name__)

BFLOAT16_FLAGS = {"amx_bf16", "avx512_bf16"}


def resolve_precision(precision: str) -> str:
    """Return `precision`, or for ``auto`` what suits the CPU; the choice and its reason go to the log.

    Parameters
    ----------
    precision : {'auto', 'float32', 'bfloat16'}
        `auto` takes bfloat16 where the CPU computes in it (AMX, AVX512-BF16), float32 elsewhere.
    """
    if precision != "auto":
        return precision
    found = sorted(BFLOAT16_FLAGS & _cpu_flags())
    reason = f"the CPU has {', '.join(found)}" if found else "the CPU has neither AMX nor AVX512-BF16"
    precision = "bfloat16" if found else "float32"
    log.info("precision auto: %s, because %s", precision, reason)
    return precision


@functools.cache
def _cpu_flags() -> frozenset[str]:
    """Return the flags of the first CPU; none where Linux does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":", 1)[1] for line in lines if line.startswith("flags")), "").split())
