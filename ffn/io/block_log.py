"""Logs of finished blocks: each job appends to its own, reads those of the others, and takes the next unfinished block.

The name of a log ends with a checksum of the key, which is all that the results depend on; logs of other keys are
removed. Each line is a claim, or a finished block, which is durable before the next one begins; a torn last line does
not count. Arrays are in a second file, so that reading the lines of a thousand jobs takes a moment.

Examples
--------
Two jobs square numbers; any process reads the results, in the order of the blocks:

>>> import tempfile
>>> blocks = list(Box.from_shape((1, 1, 4)).blocks((1, 1, 1)))
>>> logs = BlockLogs(tempfile.mkdtemp(), {"power": 2}, blocks)
>>> for number in (1, 2):
...     logs.run(lambda block: {"square": block.start[2] ** 2}, number, of=2)
>>> [result["square"] for result in logs]
[0, 1, 4, 9]
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.progress import track

log = logging.getLogger(__name__)

Result = dict[str, Any]  # of a block: values for JSON, and arrays
Work = Callable[[Box], Result]
Has = Callable[[Box], bool]  # whether the files of a block are there

LOG, ARRAYS = ".jsonl", ".arrays"
SECONDS_PER_LOG = 0.1  # between two looks at all logs, so that a thousand jobs ask for 10⁴ files a second
NOWHERE = -1


class BlockLogs(Sequence[Result]):
    """The logs of all jobs that share a list of blocks, and the results in them, read one block at a time.

    They are in `folder`, which may hold other files, too. All that the results depend on is in `key`, ready for JSON.
    """

    def __init__(self, folder: str | Path, key: Mapping[str, Any], blocks: Sequence[Box]) -> None:
        self.folder, self.blocks = Path(folder), blocks
        ends = [str(block) for block in (*blocks[:1], *blocks[-1:])]
        whole_key = {**key, "blocks": [*ends, len(blocks)]}
        self.digest = hashlib.sha256(json.dumps(whole_key, sort_keys=True).encode()).hexdigest()
        self._end = f"-{self.digest[:16]}{LOG}"  # of the names
        self._logs: list[Path] = []
        self._read_to: list[int] = []  # of each log
        self._log_of = np.full(len(blocks), NOWHERE)  # which log has the result of a block
        self._place_of = np.zeros(len(blocks), np.int64)  # of its line there
        self._claimed_by = np.full(len(blocks), NOWHERE)  # which log
        self._due = 0.0

    def __len__(self) -> int:
        """Return how many blocks there are."""
        return len(self.blocks)

    def __getitem__(self, index: Any) -> Any:
        """Return the result of a block."""
        number = range(len(self))[index]
        if self._log_of[number] == NOWHERE:
            self.require_finished()
        path = self._logs[self._log_of[number]]
        with path.open("rb") as lines:
            lines.seek(self._place_of[number])
            record = json.loads(lines.readline())
        if "arrays" not in record:
            return record["result"]
        start, length = record["arrays"]
        with path.with_suffix(ARRAYS).open("rb") as arrays:
            arrays.seek(start)
            return {**record["result"], **np.load(io.BytesIO(arrays.read(length)))}

    def run(
        self,
        work: Work,
        number: int = 1,
        of: int = 1,
        pool: tuple[Executor, int] | None = None,
        has: Has = lambda _: True,
    ) -> None:
        """Do the unfinished blocks of a share, and then those of other jobs; see `JobLog`.

        Parameters
        ----------
        work : callable
            Takes a block and returns its result, which must not depend on other blocks: two jobs may do the same one.
        number, of : int
            Which share, from 1, of how many.
        pool : Executor and int, optional
            Does the work on several blocks at once, as many as it has workers.
        has : callable, optional
            See `JobLog`.
        """
        if not self.blocks:
            return
        with contextlib.closing(JobLog(self, number, of, has)) as job:
            blocks = track(job, job.num_left, self.folder.name)
            for block, result in _in_pool(*pool, work, blocks) if pool else ((b, work(b)) for b in blocks):
                job.finish(block, result)
        self.look()

    def look(self, at_once: bool = True) -> None:
        """Read the lines that jobs have appended since the last look; unless `at_once`, not if that was just now."""
        if not at_once and time.monotonic() <= self._due:
            return
        known = set(self._logs)
        self._logs += [path for path in sorted(self.folder.glob(f"*-of-*{self._end}")) if path not in known]
        self._read_to += [0] * (len(self._logs) - len(self._read_to))
        for number, path in enumerate(self._logs):
            with contextlib.suppress(FileNotFoundError), path.open("rb") as lines:
                lines.seek(self._read_to[number])
                for record, length in _whole_lines(lines):
                    if "claim" in record:
                        self._claimed_by[record["claim"]] = number
                    else:
                        self._log_of[record["block"]], self._place_of[record["block"]] = number, self._read_to[number]
                    self._read_to[number] += length
        self._due = time.monotonic() + SECONDS_PER_LOG * len(self._logs)

    def is_finished(self, number: int) -> bool:
        """Whether a block has a result."""
        return bool(self._log_of[number] != NOWHERE)

    def free(self, own: str) -> np.ndarray:
        """Whether each block is unfinished, in the share of a job that has begun, and not claimed by another job.

        Jobs of another number of jobs are over.
        """
        of = own.partition("-of-")[2]
        jobs = [path.name.removesuffix(self._end) for path in self._logs]
        at_work = {job for job in jobs if job.endswith(f"-of-{of}")}
        is_begun = np.zeros(len(self), bool)
        for job in at_work:
            is_begun[share_of(job, len(self))] = True
        is_other = [job != own and job in at_work for job in jobs]
        is_claimed = np.array([*is_other, False])[self._claimed_by]  # the last one for `NOWHERE`
        return is_begun & (self._log_of == NOWHERE) & ~is_claimed

    def require_finished(self) -> None:
        """Raise an error unless all blocks are finished."""
        self.look()
        missing = np.flatnonzero(self._log_of == NOWHERE)
        if len(missing):
            found = f"{len(missing)} of {len(self)} blocks are not finished, such as {self.blocks[missing[0]]}"
            raise VolumeError(f"{self.folder}: {found}. Run the missing jobs")

    def start(self, job: str) -> Path:
        """Begin the log of a job, or cut off the line that a kill has torn. Remove logs of other keys.

        The blocks that those name do not exist any more once this key's are written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for other in self.folder.glob(f"*-of-*{LOG}"):
            if not other.name.endswith(self._end):
                other.unlink(missing_ok=True)
                other.with_suffix(ARRAYS).unlink(missing_ok=True)
        path = self.folder / f"{job}{self._end}"
        path.touch()
        with path.open("rb+") as lines:
            lines.truncate(sum(length for _, length in _whole_lines(lines)))
        return path


class JobLog:
    """A job on a list of blocks: iterate over it, and give each block to `finish`.

    It begins with its own share. Then it takes blocks of other jobs that have begun, the last ones first: so all jobs
    end together, and the rest of a killed one is done. The block that a killed job was at waits until this job comes
    back, or for a job whose share is everything.

    Its share is `number`, from 1, of `of`. A finished block of it is done again if its files have gone, as `has` tells.
    """

    def __init__(self, logs: BlockLogs, number: int, of: int, has: Has = lambda _: True) -> None:
        self._logs, self._number, self._helps = logs, number, of > 1
        self._job = f"{number}-of-{of}"
        path = logs.start(self._job)
        self._lines, self._arrays = path.open("ab"), path.with_suffix(ARRAYS).open("ab")
        logs.look()
        share = share_of(self._job, len(logs))
        finished = {number for number in share if logs.is_finished(number)}
        self._lost = {number for number in finished if not has(logs.blocks[number])}
        self._share = [number for number in share if number in self._lost or number not in finished]
        self._taken: dict[Box, int] = {}
        self.num_left = len(self._share)
        if self.num_left < len(share):
            log.info("%d of %d blocks were finished before", len(share) - self.num_left, len(share))

    def __iter__(self) -> Iterator[Box]:
        """Take one block after the other, until none is left."""
        for number in self._share:
            if self._helps:  # so others help, too
                self._logs.look(at_once=False)
            if not self._helps or number in self._lost or self._logs.free(self._job)[number]:
                yield self._take(number)
        while self._helps:
            self._logs.look()
            free = np.flatnonzero(self._logs.free(self._job)).tolist()
            free = [number for number in free if self._logs.blocks[number] not in self._taken]
            if not free:
                break
            yield self._take(free[-1 - self._number % (len(free) // 2 + 1)])  # each job another one

    def finish(self, block: Box, result: Result) -> None:
        """Record the result of a block, once all its files are durable."""
        arrays = {name: value for name, value in result.items() if isinstance(value, np.ndarray)}
        values = {name: value for name, value in result.items() if name not in arrays}
        record: dict[str, Any] = {"block": self._taken[block], "result": values}
        if arrays:
            content = io.BytesIO()
            np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
            record["arrays"] = [_append(self._arrays, content.getvalue()), content.tell()]
        _append(self._lines, json.dumps(record).encode() + b"\n")

    def close(self) -> None:
        """Close the files."""
        self._lines.close()
        self._arrays.close()

    def _take(self, number: int) -> Box:
        block = self._logs.blocks[number]
        self._taken[block] = number
        _append(self._lines, json.dumps({"claim": number}).encode() + b"\n")  # NFS shows it to others only then
        return block


def share_of(job: str, num_blocks: int) -> range:
    """Return the blocks of a job: neighbours, as many as in any other job or one more.

    Examples
    --------
    >>> [share_of(job, 8) for job in ("1-of-3", "2-of-3", "3-of-3")]
    [range(0, 2), range(2, 5), range(5, 8)]
    """
    number, of = map(int, job.split("-of-"))
    return range((number - 1) * num_blocks // of, number * num_blocks // of)


def _whole_lines(lines: Iterable[bytes]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the record and the length of each line, up to the first that is not whole."""
    for line in lines:
        try:
            record = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            record = None
        if not isinstance(record, dict):
            return
        yield record, len(line)


def _append(file: BinaryIO, content: bytes) -> int:
    """Append to a file, and return where; the content is durable then."""
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
    return file.tell() - len(content)


def _in_pool(pool: Executor, workers: int, work: Work, blocks: Iterable[Box]) -> Iterator[tuple[Box, Result]]:
    """Yield each block and its result; a block is taken when a worker is free."""
    left, running = iter(blocks), dict[Future[Result], Box]()
    while True:
        running |= {pool.submit(work, block): block for block in islice(left, workers - len(running))}
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(future), future.result()
