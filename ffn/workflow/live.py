"""The last progress of each running job, and the error of one that failed, from its log."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from ffn.io.faults import full_disk

TAIL_BYTES = 4096  # of a log, enough for its last lines
SECONDS = 30.0  # between two looks; our choice
MAX_LINES = 20

_ERROR = re.compile(r"\bffn[ \w-]*: error: .*")
_PROGRESS = re.compile(r"\S.*:\s+\d+% .*\[.*\]")  # a line of ffn.progress


class RunningJob(NamedTuple):
    """A job that Snakemake started or submitted."""

    title: str  # rule and wildcards
    log: Path | None

    def line(self) -> str:
        """Return its title and its last progress."""
        return f"{self.title}: {self.log and last_progress(self.log) or 'no progress yet'}"


def last_progress(log: Path) -> str | None:
    r"""Return the last line of progress in a log, None if there is none.

    Examples
    --------
    >>> import tempfile
    >>> log = Path(tempfile.mkdtemp()) / "train.log"
    >>> _ = log.write_text("train:  25% 30/120 [00:05<00:15, 5.97step/s]\nINFO checkpoint\n")
    >>> last_progress(log)
    'train:  25% 30/120 [00:05<00:15, 5.97step/s]'
    """
    return next((line for line in reversed(_tail(log)) if _PROGRESS.fullmatch(line)), None)


def last_error(log: Path) -> str | None:
    """Return the last error in the log of a failed job, or else that the disk of the log is full, if it is."""
    found = [match[0] for line in _tail(log) if (match := _ERROR.search(line))]
    return found[-1] if found else full_disk(log)


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except OSError:  # a job in the queue has no log yet
        return []


class LiveJobs(logging.Handler):
    """Prints one line for each running job below Snakemake's output, those that changed every `SECONDS`.

    Snakemake's interface for logger plugins does not fit: a plugin that writes to the terminal replaces Snakemake's own
    output, and gets its records late, from a queue.
    """

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        super().__init__()
        self._stream = stream
        self._jobs: dict[int, RunningJob] = {}
        self._shown: list[str] = []

    def start(self, logger: logging.Logger) -> None:
        """Follow the messages of `logger` until this process ends, unless another program shows the jobs."""
        if any(handler.name == "DefaultStreamHandler" for handler in logger.handlers):
            logger.addHandler(self)
            threading.Thread(target=self._repeat, daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Take note of jobs that start and end."""
        fields: Mapping[str, Any] = record.__dict__
        event = str(fields.get("event"))
        if event == "job_info":
            wildcards = " ".join(filter(None, (fields["wildcards"] or {}).values()))
            log = Path(fields["log"][0]) if fields["log"] else None
            self._jobs[fields["jobid"]] = RunningJob(f"{fields['rule_name']} {wildcards}".strip(), log)
        elif event in ("job_finished", "job_error"):
            self._jobs.pop(fields.get("job_id", fields.get("jobid")), None)

    def show(self) -> None:
        """Print the progress of the running jobs."""
        jobs = list(self._jobs.values())
        lines = [job.line() for job in jobs[:MAX_LINES]]
        if len(jobs) > MAX_LINES:
            lines.append(f"… and {len(jobs) - MAX_LINES} more jobs")
        self._stream.write("".join(f"{line}\n" for line in lines if line not in self._shown))
        self._stream.flush()
        self._shown = lines

    def _repeat(self) -> None:
        while True:
            time.sleep(SECONDS)
            self.show()
