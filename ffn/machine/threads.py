"""The number of threads that this process may use."""

from __future__ import annotations

import os
import re

from ffn.errors import ConfigError
from ffn.machine.limits import usable_cores


def threads_here(num_cores: int | None = None) -> int:
    """Return ``OMP_NUM_THREADS``, or if it is not set, how many threads can compute at the same time.

    Parameters
    ----------
    num_cores : int, optional
        Cores of this process; default: all that it may run on.

    Raises
    ------
    ConfigError
        If the variable is not a number from 1 to 9999. Of a list, one for each level of nesting, the first counts.
    """
    given = os.environ.get("OMP_NUM_THREADS", "").strip()
    if not given:
        return usable_cores(num_cores)
    outermost = given.split(",")[0].strip()
    if not re.fullmatch("0*[1-9][0-9]{0,3}", outermost):
        raise ConfigError(
            f"OMP_NUM_THREADS: found {given!r}, expected a number from 1 to 9999. Correct or unset the variable"
        )
    return int(outermost)
