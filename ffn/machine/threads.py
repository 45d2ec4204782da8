"""The number of threads that this process may use."""

from __future__ import annotations

import os
import re

from ffn.errors import ConfigError


def threads_here(num_cores: int | None = None) -> int:
    """Return ``OMP_NUM_THREADS``, or the number of cores if it is not set.

    Parameters
    ----------
    num_cores : int, optional
        Number of cores; default: all that this process may run on.

    Raises
    ------
    ConfigError
        If the variable is not a number from 1 to 9999. Of a list, one for each level of nesting, the first counts.
    """
    given = os.environ.get("OMP_NUM_THREADS", "").strip()
    if not given:
        return num_cores or len(os.sched_getaffinity(0))
    outermost = given.split(",")[0].strip()
    if not re.fullmatch("0*[1-9][0-9]{0,3}", outermost):
        raise ConfigError(
            f"OMP_NUM_THREADS: found {given!r}, expected a number from 1 to 9999. Correct or unset the variable"
        )
    return int(outermost)
