"""Updates by arrival: rank 0 serves the weights, and workers send gradients whenever they have them.

Over TCP, because MPI has no place for a process that dies or comes later: launchers end the whole job with it, and with
Open MPI's ``--enable-recovery`` a job of MPI that lost a rank never ends. Whatever starts processes may start these.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import secrets
import socket
import socketserver
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ffn.errors import TrainError
from ffn.io import atomic
from ffn.machine.rendezvous import REQUEST_SECONDS, WAITING_CONNECTIONS, serving
from ffn.training.config import TrainConfig
from ffn.training.parallel.joining import MEETING_SECONDS
from ffn.training.parallel.process_group import decode, encode, pairwise_sum
from ffn.training.parallel.updates import UpdateRule
from ffn.training.parallel.watchdog import TOKEN_BYTES, Address
from ffn.training.walk import NUM_COUNTS

if TYPE_CHECKING:
    from ffn.training.step import Learner, Outcome

ADDRESS = ".server"  # in the model folder: where the server listens, and its token
LINE_BYTES = 2**24  # most of a header, which has the positions of a worker's lanes
LOOK_SECONDS = 0.5  # between looks at signals, and for a server; our choice
LOST = (OSError, ValueError, KeyError, TypeError)  # of a connection: its end, or what is no message

LaneStates = dict[int, dict[str, np.ndarray]]

log = logging.getLogger(__name__)


class Server(socketserver.ThreadingTCPServer):
    """Makes updates of the gradients that come, by an `UpdateRule`, and keeps the states of all lanes.

    A thread for each connection receives gradients, and sends the newest weights when the rule lets the worker go on,
    so a worker that is stopped holds up nobody else. It is left out after `train.stall_seconds` and may come back.

    Parameters
    ----------
    train : TrainConfig
        Options, with the engine and precision that were chosen.
    folder : Path
        Model folder, which all processes see.
    identity : str
        That of the training; workers of another one are turned away.
    positions : mapping of int to int
        Position of each lane.
    """

    request_queue_size = WAITING_CONNECTIONS
    daemon_threads = True  # the end does not wait for a stranger that says little at a time

    def __init__(self, train: TrainConfig, folder: Path, identity: str, positions: Mapping[int, int]) -> None:
        super().__init__(("", 0), _Connection)
        self.train, self.identity, self.token = train, identity, secrets.token_hex(TOKEN_BYTES)
        self._path = folder / ADDRESS
        self._rule = UpdateRule[np.ndarray](
            train.num_workers * train.virtual_workers, train.gradients_per_update, train.max_staleness
        )
        self._lanes: LaneStates = {
            lane: {"position": np.array(at), "counts": np.zeros(NUM_COUNTS, np.int64)} for lane, at in positions.items()
        }
        self._changed = threading.Condition()  # guards all that follows, and the two before
        self._complete: deque[list[np.ndarray]] = deque()  # updates that are not made yet
        self._weights = np.empty(0, np.float32)
        self._connected: dict[int, socket.socket] = {}  # by worker
        self._absent: set[int] = set()  # workers that no update waits for
        self._is_closed = False
        self._started = self._met = time.monotonic()  # since when it serves, and when a worker last left

    @contextlib.contextmanager
    def open(self, step: int, learner: Learner) -> Iterator[None]:
        """Serve for the length of a ``with`` block, from the weights after this many steps."""
        self._rule.version, self._weights = step, learner.weights_vector()
        address = Address(socket.gethostname(), self.server_address[1], self.token)
        with serving(self):
            try:
                with atomic.atomic_path(self._path) as temporary:
                    temporary.touch(0o600)
                    temporary.write_text(json.dumps(address))
                log.info("serving at %s:%d, waiting for %d workers", *address[:2], self.train.num_workers)
                yield
            finally:
                self._path.unlink(missing_ok=True)  # tells workers that it has ended
                self._end()

    def step(self, learner: Learner, learning_rate: float, asks_to_stop: Callable[[], bool]) -> Outcome | None:
        """Make the next update; return None if this process is asked to stop before there are enough gradients."""
        started = time.perf_counter()
        with self._changed:
            while not self._complete:
                if asks_to_stop():
                    return None
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

    # the states of the lanes, as `ffn.training.walk.LaneWalks` has them

    @property
    def positions(self) -> dict[int, int]:
        """Position of each lane."""
        with self._changed:
            return {lane: int(state["position"]) for lane, state in self._lanes.items()}

    def take_counts(self) -> np.ndarray:
        """Return the counts of all walks that ended since the last call."""
        with self._changed:
            total = np.sum([state["counts"] for state in self._lanes.values()], axis=0)
            for state in self._lanes.values():
                state["counts"] = np.zeros_like(total)
        return total

    def states(self, with_walks: bool = False) -> LaneStates:
        """Return the state of each lane for a checkpoint, without walks: examples begin again."""
        with self._changed:
            return {lane: dict(state) for lane, state in self._lanes.items()}

    def restore(self, states: Mapping[int, Mapping[str, np.ndarray]]) -> None:
        """Restore the result of `states`."""
        self._lanes = {lane: dict(state) for lane, state in states.items()}

    # what the threads of the connections call

    def admit(self, hello: Mapping[str, Any], connection: socket.socket) -> dict[str, Any]:
        """Give a worker that says hello a number; return what to answer."""
        if hello["training"] != self.identity:
            return {"refused": f"{self._path.parent}: rank 0 trains with other data or options. Give it the same"}
        with self._changed:
            free = sorted(set(range(self.train.num_workers)) - self._connected.keys())
            if not free or self._is_closed:
                return {"full": True}
            worker = free[0]
            self._connected[worker] = connection
            if worker in self._absent:
                self._absent.remove(worker)
                self._rule.workers += self.train.virtual_workers
            log.info("worker %d is %s; %d are here", worker, hello["name"], len(self._connected))
            lanes = self.train.virtual_workers * self.train.batch_size
            mine = range(worker * lanes, (worker + 1) * lanes)
            positions = {lane: int(self._lanes[lane]["position"]) for lane in mine}
        return {
            "worker": worker,
            "positions": list(positions.items()),
            "choice": {"engine": self.train.engine, "precision": self.train.precision},
        }

    def exchange(self, worker: int, header: Mapping[str, Any], vectors: np.ndarray) -> tuple[int, np.ndarray]:
        """Take a worker's gradients; return the version and the weights to go on with, once it may."""
        first = worker * self.train.virtual_workers
        mine = range(first, first + self.train.virtual_workers)
        with self._changed:
            for lane, state in header["lanes"]:
                held = self._lanes[lane]
                self._lanes[lane] = {
                    "position": np.asarray(state["position"]),
                    "counts": held["counts"] + state["counts"],
                }
            for number, vector in zip(mine, vectors, strict=False):  # none in the first message
                self._make(self._rule.arrive(number, header["version"], vector))
            self._changed.wait_for(lambda: self._is_closed or not (self._complete or self._rule.waiting & {*mine}))
            if self._is_closed:
                raise ConnectionError("the training has ended")
            return self._rule.version, self._weights

    def leave(self, worker: int, name: str, reason: Exception) -> None:
        """Leave out a worker whose connection is lost, until it comes back."""
        with self._changed:
            del self._connected[worker]
            self._met = time.monotonic()
            if not self._is_closed:
                self._leave_out(worker, f"{name} is gone ({reason})")

    def handle_error(self, request: object, client_address: object) -> None:
        """Log failed connections only for debugging: a stranger may send anything."""
        log.debug("connection from %s failed", client_address, exc_info=True)

    def _make(self, gradients: list[np.ndarray] | None) -> None:
        if gradients is not None:
            self._complete.append(gradients)
            self._changed.notify_all()

    def _leave_out(self, worker: int, why: str) -> None:
        log.warning("worker %d: %s, so training goes on without it; the same command lets one join", worker, why)
        self._absent.add(worker)
        self._make(self._rule.leave(self.train.virtual_workers))

    def _leave_out_missing(self) -> None:
        """Leave out workers that have not come in time; end the job if all are missing."""
        now = time.monotonic()
        if now - self._started > MEETING_SECONDS:
            for worker in set(range(self.train.num_workers)) - self._connected.keys() - self._absent:
                self._leave_out(worker, f"it did not come within {MEETING_SECONDS} s")
        if not self._connected and now - self._met > MEETING_SECONDS:
            raise TrainError(
                f"train: no worker is there for {MEETING_SECONDS} s, expected {self.train.num_workers}. The same "
                "command resumes from the last checkpoint"
            )

    def _end(self) -> None:
        """Let all threads end, and tell what became of the gradients."""
        rule = self._rule
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            for connection in self._connected.values():
                with contextlib.suppress(OSError):  # it has ended itself
                    connection.shutdown(socket.SHUT_RDWR)
        used = rule.staleness.total()
        mean = sum(staleness * number for staleness, number in rule.staleness.items()) / max(1, used)
        log.info("%d gradients were used, %.3g updates old on average; %d were dropped", used, mean, rule.dropped)


class _Connection(socketserver.StreamRequestHandler):
    """What a worker says: one line with token, identity and name, then gradients, each answered with weights."""

    server: Server
    timeout = REQUEST_SECONDS
    disable_nagle_algorithm = True

    def handle(self) -> None:
        """Serve one worker until its connection is lost or the training ends."""
        hello = decode(self.rfile.readline(LINE_BYTES))
        if not hmac.compare_digest(str(hello["token"]), self.server.token):
            return
        answer = self.server.admit(hello, self.connection)
        try:
            self.wfile.write(encode(answer))
            self.connection.settimeout(MEETING_SECONDS)  # it may have to load its library
            while "worker" in answer:
                header, vectors = receive(self.rfile)
                self.connection.settimeout(self.server.train.stall_seconds)
                version, weights = self.server.exchange(answer["worker"], header, vectors)
                send(self.wfile, {"version": version}, weights)
        except LOST as reason:
            if "worker" in answer:
                self.server.leave(answer["worker"], hello["name"], reason)


class LinkLost(Exception):
    """Rank 0 has ended or cannot be reached."""


class Link:
    """The connection of a worker to rank 0, which gives it a place in the training of this identity.

    Attributes
    ----------
    positions : dict of int to int
        Where the worker goes on in each of its lanes.
    choice : dict
        Engine and precision that rank 0 chose.
    """

    def __init__(self, address: Address, identity: str) -> None:
        host = "127.0.0.1" if address.host == socket.gethostname() else address.host
        self._connection = socket.create_connection((host, address.port), REQUEST_SECONDS)
        self._file = self._connection.makefile("rwb")
        try:
            name = f"process {os.getpid()} on {socket.gethostname()}"
            self._file.write(encode({"token": address.token, "training": identity, "name": name}))
            self._file.flush()
            answer = decode(self._file.readline(LINE_BYTES))
            if "refused" in answer:
                raise TrainError(answer["refused"])
            self.positions: dict[int, int] = dict(answer["positions"])  # not there if there is no place
            self.choice: dict[str, str] = answer["choice"]
            log.info("joined as worker %d", answer["worker"])
            self._connection.settimeout(None)  # rank 0 may validate for long
            _notice_lost_machines(self._connection)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):  # it may be lost, with a part of a message
            self._file.close()
        self._connection.close()

    def exchange(self, version: int, vectors: np.ndarray, states: LaneStates) -> tuple[int, np.ndarray]:
        """Send gradients from the weights of a version; return the newest version and weights, or raise `LinkLost`."""
        try:
            send(self._file, {"version": version, "lanes": list(states.items())}, vectors)
            header, weights = receive(self._file)
            return header["version"], weights
        except LOST as reason:
            raise LinkLost(reason) from None


def connect(folder: Path, identity: str) -> Link | None:
    """Join the training that rank 0 serves in a model folder; return None if there is none, or no place in it."""
    with contextlib.suppress(*LOST):
        return Link(Address(*json.loads((folder / ADDRESS).read_text())), identity)
    return None


def reconnect(folder: Path, identity: str, seconds: float) -> Link | None:
    """Join again after the connection was lost; return None if the training has ended."""
    deadline = time.monotonic() + seconds
    while (folder / ADDRESS).exists():
        if link := connect(folder, identity):
            return link
        if time.monotonic() > deadline:
            raise TrainError(f"{folder}: rank 0 did not answer for {seconds:g} s. It resumes from its last checkpoint")
        time.sleep(LOOK_SECONDS)
    log.info("rank 0 has ended the training in %s", folder)
    return None


def send(file: BufferedIOBase, header: Mapping[str, Any], array: np.ndarray) -> None:
    """Send a header as a line, then an array as bytes."""
    file.write(encode({**header, "shape": array.shape}) + array.tobytes())
    file.flush()


def receive(file: BufferedIOBase) -> tuple[dict[str, Any], np.ndarray]:
    """Return what the other side sent; an OSError if it has closed the connection."""
    header = decode(file.readline(LINE_BYTES) or _ended())
    size = 4 * int(np.prod(header["shape"]))
    content = file.read(size)
    if len(content) < size:
        _ended()
    return header, np.frombuffer(content, np.float32).reshape(header["shape"])


def _ended() -> NoReturn:
    raise ConnectionError("it has closed the connection")


def _notice_lost_machines(connection: socket.socket) -> None:
    """Let the kernel ask whether the machine of the other side is still there."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 6)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
