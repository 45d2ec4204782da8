"""Arrays that the processes on one machine share, so that it reads and keeps once what all of them need.

They are mapped from a file in ``$TMPDIR`` that is removed as soon as all have mapped it, so nothing of it is left when
the processes end, however they end.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ffn.training.parallel.process_group import ProcessGroup

log = logging.getLogger(__name__)


class NodeArray(NamedTuple):
    """An array to be filled by the `num_shares` processes that share it; this one fills its `share`."""

    array: np.ndarray
    share: int
    num_shares: int

    def part(self, length: int, multiple: int = 1) -> slice:
        """Return this process's share of a range that starts at 0; shares begin at multiples of a number.

        Examples
        --------
        >>> [NodeArray(np.empty(0), share, 3).part(10, 4) for share in range(3)]
        [slice(0, 0, None), slice(0, 4, None), slice(4, 10, None)]
        """
        start, stop = (length * n // self.num_shares // multiple * multiple for n in (self.share, self.share + 1))
        return slice(start, length if self.share + 1 == self.num_shares else stop)


def node_array(group: ProcessGroup, shape: Sequence[int], dtype: DTypeLike) -> NodeArray:
    """Make an array for the processes on each machine. All processes call this together.

    If sharing fails on any machine, every process gets an array of its own.
    """
    alone = NodeArray(np.empty(shape, dtype), 0, 1)  # takes memory when it is filled
    if group.size == 1:
        return alone
    is_shared = group.local_size > 1
    path = _allocated(math.prod(shape) * np.dtype(dtype).itemsize) if is_shared and group.local_rank == 0 else None
    host = socket.gethostname()
    try:
        found = [name for of_host, name in group.gather((host, path and str(path))) if of_host == host and name]
        mapped = _mapped(found[0], shape, dtype) if found else None
        works = all(group.gather(mapped is not None or not is_shared))
    finally:  # also if a process is lost meanwhile
        if path is not None:
            path.unlink(missing_ok=True)
    if mapped is None or not works:
        return alone
    return NodeArray(mapped, group.local_rank, group.local_size)


def _allocated(num_bytes: int) -> Path | None:
    """Make a file of this size that only this user can open; return its path, None if there is no room."""
    number, name = tempfile.mkstemp(prefix="ffn-")
    try:
        with open(number, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        return Path(name)
    except OSError as reason:
        log.warning("%s: processes do not share data, each keeps its own (%s)", name, reason)
        Path(name).unlink()
        return None


def _mapped(path: str, shape: Sequence[int], dtype: DTypeLike) -> np.ndarray | None:
    """Map a file that another process made; None if it is not visible here, as in a container of its own."""
    with contextlib.suppress(OSError, ValueError):
        return np.memmap(path, dtype, "r+", shape=tuple(shape))
    return None
