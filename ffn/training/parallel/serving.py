"""Updates by arrival: rank 0 serves the weights, and workers send gradients whenever they have them.

Over TCP, because MPI has no place for a process that dies or comes later: launchers end the whole job with it, and with
Open MPI's ``--enable-recovery`` a job of MPI that lost a rank never ends. Whatever starts processes may start these.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import math
import os
import secrets
import socket
import socketserver
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedIOBase
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ffn.errors import TrainError
from ffn.io import atomic
from ffn.machine.rendezvous import REQUEST_SECONDS, PatientServer, serving
from ffn.training.parallel.joining import MEETING_SECONDS
from ffn.training.parallel.process_group import TOKEN_BYTES, decode, encode, pairwise_sum
from ffn.training.walk import NUM_COUNTS, LaneWalks

if TYPE_CHECKING:
    from ffn.training.plan import TrainingPlan
    from ffn.training.step import Learner, Outcome

ADDRESS = ".server"  # in the model folder: where the server listens, its token, and which training it serves
LINE_BYTES = 2**24  # most of a header, which has the positions of a worker's lanes
LOOK_SECONDS = 0.5  # between looks at signals, and for a server; our choice
LOST = (OSError, ValueError, KeyError, TypeError)  # of a connection: its end, or what is no message
Message = tuple[dict[str, Any], np.ndarray]
NO_GRADIENTS = np.empty((0, 0), np.float32)

log = logging.getLogger(__name__)


@dataclass
class UpdateRule:
    """An update is the mean of the first gradients that arrive; those from too old weights are dropped.

    With N workers: N gradients and staleness 0 is synchronous training, N - b and 0 has b backup workers, and one of
    any staleness is asynchronous. A worker whose gradient is used waits for the update if staleness must be 0, because
    another gradient from the same weights would keep the others out.

    Notes
    -----
    Source: Chen et al. 2016, "Revisiting distributed synchronous SGD" (backup workers); Zhang et al. 2016,
    "Staleness-aware async-SGD" (between one gradient and all).

    Examples
    --------
    >>> rule = UpdateRule(workers=3, gradients=2, max_staleness=0)
    >>> rule.arrive(2, 0, "c"), rule.arrive(0, 0, "a"), rule.arrive(1, 0, "b"), rule.dropped
    (None, ['a', 'c'], None, 1)
    """

    workers: int  # that are expected; an update needs no more gradients than there are workers
    gradients: int  # that make an update
    max_staleness: int | None  # updates that a gradient's weights may be behind the newest ones; None: any number
    version: int = 0  # updates so far; a worker that takes the weights now sends this number with its gradient
    dropped: int = 0  # gradients that came too late
    staleness: Counter[int] = field(default_factory=Counter)  # used gradients by the updates their weights were behind
    _gathered: list[tuple[int, Any]] = field(default_factory=list)

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of used gradients."""
        return sum(age * number for age, number in self.staleness.items()) / max(1, self.staleness.total())

    @property
    def waiting(self) -> set[int]:
        """Workers that must not begin another gradient before the next update."""
        return {worker for worker, _ in self._gathered} if self.max_staleness == 0 else set()

    def arrive(self, worker: int, version: int, payload: Any) -> list[Any] | None:
        """Take a worker's gradient from weights of this version; return those of an update that it completes."""
        staleness = self.version - version
        if self.max_staleness is not None and staleness > self.max_staleness:
            self.dropped += 1
            return None
        self.staleness[staleness] += 1
        self._gathered.append((worker, payload))
        return self.completed()

    def completed(self) -> list[Any] | None:
        """Return the gradients of an update if they are enough, in an order that does not depend on their arrival."""
        if len(self._gathered) < max(1, min(self.gradients, self.workers)):
            return None
        complete = [payload for _, payload in sorted(self._gathered, key=itemgetter(0))]
        self._gathered.clear()
        self.version += 1
        return complete


class Server(PatientServer, socketserver.TCPServer):
    """Makes updates of the gradients that come, by an `UpdateRule`, and keeps the positions of all lanes.

    A thread for each connection receives gradients, and sends the newest weights when the rule lets the worker go on,
    so a worker that is stopped holds up nobody else. It is left out after `train.stall_seconds` and may come back.
    """

    def __init__(self, plan: TrainingPlan) -> None:
        super().__init__(("", 0), socketserver.BaseRequestHandler)  # not used, see `finish_request`
        self._plan, self._token = plan, secrets.token_hex(TOKEN_BYTES)
        train = plan.train
        self.positions = dict.fromkeys(range(train.num_lanes), 0)
        self._rule = UpdateRule(train.total_workers, train.gradients, train.max_staleness)
        self._changed = threading.Condition()  # guards positions, the rule and all that follows
        self._counts = np.zeros(NUM_COUNTS, np.int64)  # of walks that have ended
        self._complete: deque[list[np.ndarray]] = deque()  # updates that are not made yet
        self._weights = np.empty(0, np.float32)
        self._connected: dict[int, socket.socket] = {}  # by worker
        self._expected = set(range(train.num_workers))  # workers that updates wait for
        self._is_closed = False

    @contextlib.contextmanager
    def open(self, folder: Path, learner: Learner) -> Iterator[None]:
        """Serve a model folder, which all processes see, for the length of a ``with`` block, from these weights."""
        self._weights = learner.weights_vector()
        address = socket.gethostname(), self.server_address[1]
        with serving(self):
            try:
                with atomic.atomic_path(folder / ADDRESS) as temporary:
                    temporary.touch(0o600)
                    temporary.write_text(json.dumps((*address, self._token, self._plan.identity())))
                log.info("serving at %s:%d, waiting for %d workers", *address, len(self._expected))
                yield
            finally:
                (folder / ADDRESS).unlink(missing_ok=True)  # tells workers that it has ended
                with self._changed:
                    self._is_closed = True
                    self._changed.notify_all()
                    for connection in self._connected.values():
                        with contextlib.suppress(OSError):  # it has ended itself
                            connection.shutdown(socket.SHUT_RDWR)
                rule, text = self._rule, "%d gradients were used, %.3g updates old on average; %d were dropped"
                log.info(text, rule.staleness.total(), rule.mean_staleness, rule.dropped)

    def step(self, learner: Learner, learning_rate: float, asks_to_stop: Callable[[], bool]) -> Outcome | None:
        """Make the next update; return None if this process is asked to stop before there are enough gradients."""
        started = time.perf_counter()
        with self._changed:
            while not self._complete:
                if asks_to_stop():
                    return None
                if time.perf_counter() - started > MEETING_SECONDS:
                    self._leave_out_missing()
                self._changed.wait(LOOK_SECONDS)
            gradients = self._complete[0]
        gathered = time.perf_counter()
        outcome = learner.update([pairwise_sum(np.stack(gradients)) / np.float32(len(gradients))], learning_rate)
        weights = learner.weights_vector()
        with self._changed:
            self._complete.popleft()
            self._weights = weights
            self._changed.notify_all()
        computed = time.perf_counter() - gathered
        num_bytes = weights.nbytes * len(gradients)
        return outcome._replace(allreduce_seconds=gathered - started, compute_seconds=computed, bytes_sent=num_bytes)

    # As `LaneWalks`, but examples begin again where a checkpoint is restored.

    def take_counts(self) -> np.ndarray:
        """Return the counts of all walks that ended since the last call."""
        with self._changed:
            counts, self._counts = self._counts, np.zeros_like(self._counts)
        return counts

    def states(self, with_walks: bool = False) -> dict[int, dict[str, np.ndarray]]:
        """Return the position of each lane for a checkpoint."""
        with self._changed:
            return {lane: {"position": np.array(at)} for lane, at in self.positions.items()}

    def restore(self, states: Mapping[int, Mapping[str, np.ndarray]]) -> None:
        """Restore the result of `states`."""
        self.positions = {lane: int(state["position"]) for lane, state in states.items()}

    def finish_request(self, request: Any, client_address: object) -> None:
        """Serve a worker, which says its name and the token, then sends gradients, each answered with weights."""
        request.settimeout(REQUEST_SECONDS)
        request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        with request.makefile("rwb") as file:
            hello = decode(file.readline(LINE_BYTES))
            if not hmac.compare_digest(str(hello["token"]), self._token):
                return
            answer = self._admit(hello["name"], request)
            worker = answer["worker"]
            try:
                send(file, answer, NO_GRADIENTS)
                request.settimeout(MEETING_SECONDS)  # it may have to load its library
                while worker is not None:
                    header, vectors = receive(file)
                    request.settimeout(self._plan.train.stall_seconds)
                    send(file, *self._exchange(worker, header, vectors))
            except LOST as reason:
                with self._changed:
                    if worker is not None and not self._is_closed:
                        del self._connected[worker]
                        self._expect(self._expected - {worker}, f"{hello['name']} is gone ({reason})")

    def _admit(self, name: str, connection: socket.socket) -> dict[str, Any]:
        """Give a worker that comes a number, None if none is missing, and tell it the positions of its lanes."""
        with self._changed:
            missing = set(range(self._plan.train.num_workers)) - self._connected.keys()
            if not missing:
                return {"worker": None}
            worker = min(missing)
            self._connected[worker] = connection
            self._expect(self._expected | {worker})
            log.info("worker %d is %s; %d are here", worker, name, len(self._connected))
            return {"worker": worker, "positions": [(lane, self.positions[lane]) for lane in self._plan.lanes(worker)]}

    def _exchange(self, worker: int, header: Mapping[str, Any], vectors: np.ndarray) -> Message:
        """Take a worker's gradients; return the version and the weights to go on with, once it may."""
        mine = self._plan.workers(worker)
        with self._changed:
            self.positions.update(header["positions"])
            self._counts = self._counts + header["counts"]
            for number, vector in zip(mine, vectors, strict=False):  # none in the first message
                self._make(self._rule.arrive(number, header["version"], vector))
            self._changed.wait_for(lambda: self._is_closed or not (self._complete or self._rule.waiting & {*mine}))
            if self._is_closed:
                raise ConnectionError("the training has ended")
            return {"version": self._rule.version}, self._weights

    def _make(self, gradients: list[np.ndarray] | None) -> None:
        if gradients is not None:
            self._complete.append(gradients)
            self._changed.notify_all()

    def _expect(self, workers: set[int], why: str = "") -> None:
        """Let updates wait for these workers alone, and say why others are left out."""
        for worker in self._expected - workers:
            log.warning("worker %d: %s, so training goes on without it; the same command lets one join", worker, why)
        self._expected, self._rule.workers = workers, len(workers) * self._plan.train.virtual_workers
        self._make(self._rule.completed())

    def _leave_out_missing(self) -> None:
        """Leave out workers that have not come in time; end the job if all are missing."""
        if not self._connected:
            found = f"no worker is there for {MEETING_SECONDS} s, expected {self._plan.train.num_workers}"
            raise TrainError(f"train: {found}. The same command resumes from the last checkpoint")
        self._expect(self._expected & self._connected.keys(), f"it did not come within {MEETING_SECONDS} s")


@dataclass
class Link:
    """The connection of a worker to rank 0; `positions` are where it goes on in each of its lanes."""

    positions: dict[int, int]
    _file: BufferedIOBase
    _stack: contextlib.ExitStack

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):  # it may be lost, with a part of a message
            self._stack.close()

    def exchange(self, version: int, vectors: np.ndarray, walks: LaneWalks) -> tuple[int, np.ndarray] | None:
        """Send gradients from the weights of a version; return the newest ones, None if the connection is lost."""
        header = {"version": version, "positions": list(walks.positions.items()), "counts": walks.take_counts()}
        with contextlib.suppress(*LOST):
            send(self._file, header, vectors)
            answer, weights = receive(self._file)
            return answer["version"], weights
        return None


def connect(folder: Path, identity: str) -> Link | None:
    """Join the training that rank 0 serves in a model folder; return None if there is none."""
    with contextlib.suppress(*LOST), contextlib.ExitStack() as stack:
        host, port, token, served = json.loads((folder / ADDRESS).read_text())
        host = "127.0.0.1" if host == socket.gethostname() else host
        connection = stack.enter_context(socket.create_connection((host, port), REQUEST_SECONDS))
        if served != identity:
            raise TrainError("train: rank 0 trains with other data or options. Give all processes the same")
        file = stack.enter_context(connection.makefile("rwb"))
        send(file, {"token": token, "name": f"process {os.getpid()} on {socket.gethostname()}"}, NO_GRADIENTS)
        answer, _ = receive(file)
        if answer["worker"] is None:
            raise TrainError("train.num_workers: all of them are there already, so this process has nothing to do")
        log.info("joined as worker %d", answer["worker"])
        connection.settimeout(None)  # rank 0 may validate for long
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # its machine may be lost
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        return Link(dict(answer["positions"]), file, stack.pop_all())
    return None


def reconnect(folder: Path, identity: str, seconds: float) -> Link | None:
    """Join again after the connection was lost; return None if the training has ended."""
    deadline = time.monotonic() + seconds
    while (folder / ADDRESS).exists():
        with contextlib.suppress(TrainError):  # no place until rank 0 notices that the connection is lost
            if link := connect(folder, identity):
                return link
        if time.monotonic() > deadline:
            raise TrainError(f"{folder}: rank 0 gave no place for {seconds:g} s. It resumes from its last checkpoint")
        time.sleep(LOOK_SECONDS)
    log.info("rank 0 has ended the training in %s", folder)
    return None


def send(file: BufferedIOBase, header: Mapping[str, Any], array: np.ndarray) -> None:
    """Send a header as a line, then an array as bytes."""
    file.write(encode({**header, "shape": array.shape}) + array.tobytes())
    file.flush()


def receive(file: BufferedIOBase) -> Message:
    """Return what the other side sent; an OSError or ValueError if it has closed the connection."""
    line = file.readline(LINE_BYTES)
    if not line:
        raise ConnectionError("it has closed the connection")
    header = decode(line)
    content = file.read(4 * math.prod(header["shape"]))
    return header, np.frombuffer(content, np.float32).reshape(header["shape"])
