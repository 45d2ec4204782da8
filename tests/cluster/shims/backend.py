"""Behind the commands of the emulated schedulers are processes of this machine.

FFN_SHIMS is the folder of their state. Every command is recorded.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ["FFN_SHIMS"])
FIRST_ID = 1001
BARE = ("HOME", "LANG", "FFN_SHIMS", "TF_CPP_MIN_LOG_LEVEL")  # that a scheduler leaves of the environment


def record() -> None:
    """Append this command to the transcript."""
    line = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]) + "\n"
    with (STATE / "transcript").open("a") as transcript:
        transcript.write(line)


def check_queue(queues: dict[str, list[tuple[int, int, int, int]]], name: str, nodes: int, minutes: float) -> None:
    """Refuse what a site's queue refuses: `queues` has least and most nodes and minutes."""
    rows = queues.get(name, [])
    if not any(low <= nodes <= high and least <= minutes <= most for low, high, least, most in rows):
        sys.exit(f"qsub: {nodes} nodes for {minutes:.0f} minutes violate the limits of queue {name!r}")


def use_cores(environment: dict[str, str]) -> None:
    """Take a launcher's environment, with no more threads than this machine has for what stands for a node."""
    os.environ.update(environment)
    os.environ["OMP_NUM_THREADS"] = str(min(int(os.environ.get("OMP_NUM_THREADS", "1")), os.cpu_count() or 1))


class Local:
    """Every job is a session of processes of this machine; it has a file for as long as the queue knows it."""

    def __init__(self) -> None:
        self._sessions: dict[str, str] = {}

    def submit(self, script: str, minutes: float, log: str, variables: dict[str, str]) -> str:
        """Start a script; `{id}` in the values of `variables` becomes the job's number."""
        number = self._next_number()
        exports = "".join(f"export {k}={shlex.quote(v.format(id=number))}\n" for k, v in variables.items())
        known = self._file(number)
        limited = f"timeout -k 5 {60 * minutes:.0f} {shlex.quote(script)} >> {shlex.quote(log)} 2>&1"
        (STATE / f"{number}.start").write_text(f"{exports}echo $$ > {known}\n{limited}\nrm -f {known}\n")
        self._start(number)
        return number

    def preempt(self, number: str) -> None:
        """End a job without a warning and start it again, as a queue does with a job that may be run again."""
        for process in self._processes(number):
            _signal(process, signal.SIGKILL)
        self._start(number)

    def live(self) -> list[str]:
        """Return the numbers of the jobs that are not over."""
        return sorted(path.stem for path in STATE.glob("*.job"))

    def cancel(self, numbers: list[str]) -> None:
        """End all processes of these jobs, politely first."""
        for name in (signal.SIGTERM, signal.SIGKILL):
            for number in numbers:
                for process in self._processes(number):
                    _signal(process, name)
            deadline = time.monotonic() + 15
            while any(map(self._processes, numbers)) and time.monotonic() < deadline:
                time.sleep(0.1)
        for number in numbers:
            self._file(number).unlink(missing_ok=True)

    def lose(self, number: str) -> None:
        """End a job as the loss of its node does: nobody writes anything down."""
        processes = self._processes(number)
        self._file(number).unlink()
        for process in processes:
            _signal(process, signal.SIGKILL)

    def launch(self, ranks: int, command: list[str]) -> None:
        """Become the launcher of these processes."""
        if ranks == 1:
            os.execvp(command[0], command)
        os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        options = ["--oversubscribe", "--bind-to", "none", "--host", f"localhost:{ranks}", "-np", str(ranks)]
        os.execvp("mpirun", ["mpirun", *options, *command])

    def _start(self, number: str) -> None:
        self._file(number).touch()
        null = subprocess.DEVNULL
        subprocess.Popen(
            ["bash", STATE / f"{number}.start"],
            env={**{k: v for k, v in os.environ.items() if k in BARE}, "PATH": os.defpath},
            cwd="/",
            start_new_session=True,
            stdin=null,
            stdout=null,
            stderr=null,
        )

    def _next_number(self) -> str:
        with (STATE / "number").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            number = int(file.read() or FIRST_ID - 1) + 1
            file.truncate(0)
            file.write(str(number))
        return str(number)

    def _file(self, number: str) -> Path:
        return STATE / f"{number}.job"

    def _processes(self, number: str) -> list[int]:
        """Processes of the job's session, the leader first: it would take the file away."""
        try:
            session = self._file(number).read_text().strip()
        except OSError:
            session = ""
        session = session or self._sessions.get(number, "")
        self._sessions[number] = session
        listed = subprocess.run(["ps", "-o", "pid=", "-s", session or "0"], capture_output=True, text=True).stdout
        return [int(word) for word in listed.split()] if session else []


def _signal(process: int, name: signal.Signals) -> None:
    try:
        os.kill(process, name)
    except ProcessLookupError:
        return
