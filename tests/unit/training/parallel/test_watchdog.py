"""The watchdog names the process that is stuck or gone, and ends the whole job, but never without a reason."""

import socket
import subprocess
import sys
import textwrap

import pytest

from ffn.training.parallel.process_group import MAX_INTERVAL, PACKET, Watchdog

from ..conftest import Clock

LIMIT = 10.0


class Left(Exception):
    """A process has ended."""


def leave(code):
    raise Left(code)


class Process:
    """A process that has made `steps` steps at time 0, and what it knows at other times."""

    def __init__(self, rank=0, size=3, steps=2):
        self._now = Clock()
        self._dog = Watchdog(rank, size, LIMIT, self._now)
        for _ in range(steps):
            self._dog.reach(is_step=True)

    def step(self, time):
        self._now.time = time
        self._dog.reach(is_step=True)

    def hear(self, rank, reached, time):
        self._dog.reached[rank], self._dog._heard[rank] = reached, time

    def problem(self, time):
        self._now.time = time
        return self._dog.problem()


def test_a_process_that_lives_but_makes_no_progress_is_named():
    process = Process()
    for time in (5, 11):
        process.hear(1, 2, time)
        process.hear(2, 1, time)
    assert process.problem(10) is None
    assert process.problem(11).startswith("rank 2 made")


def test_the_first_step_may_take_longer():
    process = Process(size=2, steps=1)
    process.hear(1, 1, 99)
    assert process.problem(100) is None
    process.hear(1, 0, 1800)
    assert process.problem(1801).startswith("rank 1 made")  # but not for ever
    process.step(100)
    process.hear(1, 1, 111)
    assert process.problem(111).startswith("rank 1 made")


def test_a_standstill_without_a_culprit_is_judged_by_rank_0():
    process = Process(size=2)
    process.hear(1, 2, 11)
    assert process.problem(11).startswith("no step finished")
    assert "3 ranks (1, 2, 3)" in Process(size=4).problem(11)
    assert "99 ranks (1, " in Process(size=100).problem(11)
    process = Process(rank=1)
    process.hear(0, 2, 11)
    assert process.problem(12) is None
    assert process.problem(15.1).startswith("no step finished")
    assert process.problem(21.1).startswith("rank 0 did")


@pytest.fixture
def job():
    """Clock, watchdogs of three processes without threads, by rank, and the address of the first one."""
    now = Clock()
    dogs = {rank: Watchdog(rank, 3, LIMIT, now, leave) for rank in range(3)}
    addresses = [dog.listen(is_one_machine=True) for dog in dogs.values()]
    for dog in dogs.values():
        dog.join(addresses[0])
        for _ in range(2):
            dog.reach(is_step=True)
    yield now, dogs, addresses[0]
    for dog in dogs.values():
        dog._socket.close()


def test_only_packets_of_this_job_count(job):
    _, dogs, address = job
    token, dog = address.token.encode(), dogs[0]
    ours = PACKET.pack(token, 1, 6, False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for packet in (b"", b"too short", PACKET.pack(bytes(16), 1, 5, True), ours + b"x"):
            sender.sendto(packet, address[:2])
            dog.receive()
        assert dog.reached == {0: 2}
        sender.sendto(ours, address[:2])
        dog.receive()
    assert dog.reached == {0: 2, 1: 6}


def play_round(dogs, now, stuck=()):
    """Let every process that is not stuck make a step, then let the watchdogs exchange signs of life."""
    now.time += MAX_INTERVAL / 5
    alive = {rank: dog for rank, dog in dogs.items() if rank not in stuck}
    for rank, dog in alive.items():
        dog.reach(is_step=True)
        if rank != 0:
            dog._send(0)
    for rank in alive.keys() - {0}:
        if 0 in alive:
            dogs[0].receive()
            dogs[rank].receive()
    for dog in alive.values():
        dog.check()


@pytest.mark.parametrize(("lost", "first"), [(0, 1), (2, 0)])
def test_when_one_process_stops_the_others_end_and_name_it(job, capfd, lost, first):
    now, dogs, _ = job
    for _ in range(100):
        play_round(dogs, now)
    with pytest.raises(Left) as left:
        for _ in range(100):
            play_round(dogs, now, stuck=[lost])
    assert left.value.args == (2,)
    told = f"ffn: error: rank {first}: rank {lost} did not answer for 10 s (train.stall_seconds), so the job ends. "
    assert capfd.readouterr().err == told + "The same command resumes from the last checkpoint\n"
    if first == 0:
        with pytest.raises(Left):  # rank 0 tells the others
            dogs[1].receive()
        assert capfd.readouterr().err == ""


def test_a_machine_that_slept_is_no_reason_to_end_the_job(job):
    now, dogs, _ = job
    play_round(dogs, now)
    now.time += 1000
    for dog in dogs.values():
        dog.check()


PROCESS = textwrap.dedent(
    """
    import threading
    from ffn.training.parallel.process_group import Watchdog

    dog = Watchdog(0, 2, 0.5)
    dog._moved -= 1e6
    dog.join(dog.listen(is_one_machine=False))
    dog.start()
    threading.Event().wait()
    """
)


def test_a_process_ends_although_its_main_thread_hangs():
    done = subprocess.run([sys.executable, "-c", PROCESS], capture_output=True, text=True)
    assert done.returncode == 2
    assert "and rank 1" in done.stderr
