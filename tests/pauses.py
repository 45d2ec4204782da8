"""Processes that stop themselves at a named point, so that a test kills them there, however busy the machine is.

tests/pausing/sitecustomize.py does it inside of them: nothing in `ffn` knows of it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import time
from pathlib import Path

import psutil

VARIABLE = "FFN_TEST_PAUSE"
PAUSING = Path(__file__).parent / "pausing"
ROOT = Path(__file__).parents[1]  # commands in `tests` run from any folder


class Pause:
    """A point at which processes stop themselves (SIGSTOP); they go on when told, and are killed meanwhile.

    It is a call of a function, ``package.module:Class.method``, that is called by way of its module or class, in the
    processes with `word` on their command line. With a `token`, a file that does not exist, only the first one stops.
    """

    def __init__(self, word: str, function: str, calls=1, before=False, rank: int | None = None, token=None) -> None:
        point = {"word": word, "function": function, "calls": calls, "before": before, "rank": rank}
        # the name tells these processes from those of other tests that run at the same time
        self._text = json.dumps({**point, "token": token and str(token), "name": secrets.token_hex(8)})

    def variables(self) -> dict[str, str]:
        """Return what the environment of the processes has in addition."""
        path = [str(PAUSING), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {VARIABLE: self._text, "PYTHONPATH": os.pathsep.join(path)}

    def stopped(self) -> list[psutil.Process]:
        """Return the processes that are stopped there now, on this machine or in a namespace of it."""
        found = []
        for process in psutil.process_iter():
            try:
                is_there = process.status() == psutil.STATUS_STOPPED
                if is_there and process.environ().get(VARIABLE) == self._text:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def wait(self, starter: subprocess.Popen, number: int = 1) -> list[psutil.Process]:
        """Wait until this many are stopped while their starter still runs, and return them."""
        while len(found := self.stopped()) < number:
            assert starter.poll() is None, f"ended with {starter.returncode} before {number} came to {self._text}"
            time.sleep(0.2)  # each look reads all processes of the machine
        return found

    def resume_with(self, number: signal.Signals) -> None:
        """Let all go on once this signal is before them, or they have gone on to meet it, as Slurm lets them."""
        while any(not _is_pending(process.pid, number) for process in self.stopped()):
            time.sleep(0.05)
        self.resume()

    def resume(self) -> None:
        """Let all go on that are stopped now."""
        for process in self.stopped():
            process.resume()


def _is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal waits for a stopped process to go on."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True
    masks = re.findall(r"^(?:SigPnd|ShdPnd):\s*(\w+)$", text, re.MULTILINE)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
