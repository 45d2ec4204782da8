"""Connections of workers to the process that serves the weights."""

import contextlib
import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from ffn.errors import TrainError
from ffn.training import loop
from ffn.training.config import TrainConfig
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.parallel.serving import ADDRESS, NO_GRADIENTS, Server, connect
from ffn.training.train import served_in

pytestmark = pytest.mark.usefixtures("no_launcher")

TRAIN = TrainConfig(num_workers=1, gradients_per_update=1)
LEARNER = SimpleNamespace(weights_vector=lambda: np.zeros(3, np.float32))


@pytest.fixture
def plan(tmp_path):
    """Plan of a training that a process serves meanwhile."""
    with contextlib.ExitStack() as stack:
        plan = SimpleNamespace(identity=lambda: "this", train=TRAIN, rng_seed=1, example_source=id, end=stack.close)
        plan.initial = SimpleNamespace(config=None, weights={})
        plan.lanes = plan.workers = lambda worker: range(1)
        stack.enter_context(Server(plan).open(tmp_path, LEARNER))
        yield plan


def fail():
    raise ZeroDivisionError


def stopped(plan, link, folder):
    interruption = SimpleNamespace(requested=True, reason="SIGTERM")
    loop.contribute(plan, link, folder, ProcessGroup(), interruption)
    fail()


@pytest.mark.parametrize("work", [lambda *_: fail(), stopped])
def test_a_worker_that_fails_or_is_stopped_closes_its_connection(work, plan, tmp_path, monkeypatch):
    for name in ("make_learner", "make_patches", "LaneWalks"):
        monkeypatch.setattr(loop, name, lambda *_: None)
    monkeypatch.setattr(loop, "Prefetcher", lambda *_: contextlib.nullcontext())
    with pytest.raises(ZeroDivisionError), served_in(tmp_path, plan) as link:
        work(plan, link, tmp_path)
    with contextlib.closing(link):
        assert link.exchange(0, NO_GRADIENTS, SimpleNamespace(positions={}, take_counts=list)) is None


def test_a_worker_beyond_their_number_is_told_so(plan, tmp_path):
    with served_in(tmp_path, plan), pytest.raises(TrainError, match="train.num_workers"):
        with served_in(tmp_path, plan):
            fail()


def test_a_process_with_other_options_is_turned_away(plan, tmp_path):
    with pytest.raises(TrainError, match="^train: "):
        connect(tmp_path, "that")
    address = (tmp_path / ADDRESS).read_text()
    plan.end()
    (tmp_path / ADDRESS).write_text(address)  # as after a kill -9
    assert connect(tmp_path, "that") is connect(tmp_path, "this") is None


def test_a_stranger_that_says_little_does_not_hold_up_the_end(tmp_path):
    before = {*threading.enumerate()}
    plan = SimpleNamespace(identity=lambda: "this", train=TRAIN)
    with Server(plan) as server, socket.socket() as stranger:
        with server.open(tmp_path, LEARNER):
            stranger.connect(("127.0.0.1", server.server_address[1]))
            while len({*threading.enumerate()} - before) < 2:  # one accepts, one listens to the stranger
                time.sleep(0.001)
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):  # it was not waited for until its silence had lasted too long
            stranger.recv(1)
    for listener in {*threading.enumerate()} - before:
        listener.join()
