"""How many threads this process may use."""

from __future__ import annotations

import os
import re

from ffn.errors import ConfigError


def threads_here(num_cores: int | None = None) -> int:
    """Return the threads that ``OMP_NUM_THREADS`` gives this process, else one for each of its cores.

    Parameters
    ----------
    num_cores : int, optional
        Cores of this process; by default all that it may run on.

    Raises
    ------
    ConfigError
        If the variable is no number from 1 to 9999; of several, one for each level of nesting, the first counts.
    """
    given = os.environ.get("OMP_NUM_THREADS", "").strip()
    if not given:
        return num_cores or len(os.sched_getaffinity(0))
    outermost = given.split(",")[0].strip()
    if not re.fullmatch("0*[1-9][0-9]{0,3}", outermost):
        raise ConfigError(
            f"OMP_NUM_THREADS: found {given!r}, expected a number from 1 to 9999. Correct the variable or unset it"
        )
    return int(outermost)
