"""How many threads this process may use."""

from __future__ import annotations

import os
import re

from ffn.errors import ConfigError


def threads_here(num_processes: int = 1) -> int:
    """Return the threads that ``OMP_NUM_THREADS`` gives this process, else its share of the cores.

    Parameters
    ----------
    num_processes : int
        Processes of one job on this machine, which share the cores.

    Raises
    ------
    ConfigError
        If the variable is no number from 1 to 9999; of several, one for each level of nesting, the first counts.
    """
    given = os.environ.get("OMP_NUM_THREADS", "").strip()
    if not given:
        return max(1, len(os.sched_getaffinity(0)) // num_processes)
    outermost = given.split(",")[0].strip()
    if not re.fullmatch("0*[1-9][0-9]{0,3}", outermost):
        raise ConfigError(
            f"OMP_NUM_THREADS: found {given!r}, expected a number from 1 to 9999. Correct the variable or unset it"
        )
    return int(outermost)
