"""The watchdog names the process that is stuck or gone, and ends the whole job, but never without a reason."""

import socket
import subprocess
import sys
import textwrap

import pytest

from ffn.training.parallel.watchdog import MAX_INTERVAL, PACKET, Attendance, Watchdog

LIMIT = 10.0


def attendance(rank=0, size=3, steps=2):
    """Attendance of a process that has made `steps` steps at time 0."""
    book = Attendance(rank, size, LIMIT, 0.0)
    for _ in range(steps):
        book.reach(0.0, is_step=True)
    return book


def test_a_process_that_stays_silent_beyond_the_limit_is_named():
    book = attendance()
    for now in range(0, 40, 4):
        book.reach(now, is_step=True)
        book.hear(1, now, now)
        if now < 20:
            book.hear(2, now, now)
            assert book.problem(now) is None
    assert book.problem(26) is None  # last heard at 16
    assert book.problem(26.5).startswith("rank 2 did")


def test_a_process_that_lives_but_makes_no_progress_is_named():
    book = attendance()
    for now in (5, 11):
        book.hear(1, 2, now)
        book.hear(2, 1, now)
    assert book.problem(10) is None
    assert book.problem(11).startswith("rank 2 made")


def test_the_first_step_may_take_longer():
    book = attendance(size=2, steps=1)
    book.hear(1, 1, 99)
    assert book.problem(100) is None
    book.hear(1, 0, 1800)
    assert book.problem(1801).startswith("rank 1 made")  # but not for ever
    book.reach(100, is_step=True)
    book.hear(1, 1, 111)
    assert book.problem(111).startswith("rank 1 made")


def test_a_standstill_without_a_culprit_ends_the_job_too():
    book = attendance(size=2)
    book.hear(1, 2, 11)
    assert book.problem(11).startswith("no step finished")
    assert "ranks 1, 2," in attendance(size=4).problem(11)
    assert "99 processes" in attendance(size=100).problem(11)


def test_other_ranks_leave_the_verdict_to_rank_0_unless_it_is_gone():
    book = attendance(rank=1)
    book.hear(0, 2, 0)
    book.hear(0, 2, 11)
    assert book.problem(12) is None
    assert book.problem(15.1).startswith("no step finished")
    assert book.problem(21.1).startswith("rank 0 did")


class Clock:
    """A clock that the test moves."""

    time = 0.0

    def __call__(self):
        return self.time


class Left(Exception):
    """A process has ended."""


def leave(code):
    raise Left(code)


@pytest.fixture
def make_watchdog():
    """Function that returns a watchdog without a thread, and its attendance; the test plays clock and thread."""
    dogs = []

    def make(rank, size, now):
        book = attendance(rank, size)
        dogs.append(Watchdog(book, is_one_machine=True, now=now, leave=leave))
        return dogs[-1], book

    yield make
    for dog in dogs:
        dog._socket.close()


@pytest.fixture
def receive():
    """Function that lets a watchdog receive datagrams."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:

        def send(dog, *datagrams):
            for datagram in datagrams:
                sender.sendto(datagram, dog.address[:2])
                dog.receive()

        yield send


def test_only_packets_of_this_job_count(make_watchdog, receive):
    dog, book = make_watchdog(0, 2, Clock())
    other = PACKET.pack(bytes(16), 1, 5, True)
    ours = PACKET.pack(dog.address.token.encode(), 1, 6, False)
    receive(dog, b"", b"too short", other, ours + b"x")
    assert book.reached == {0: 2}
    receive(dog, ours)
    assert book.reached == {0: 2, 1: 6}


@pytest.fixture
def job(make_watchdog):
    """Clock and three watchdogs of one job, with their attendances, by rank."""
    now = Clock()
    members = {rank: make_watchdog(rank, 3, now) for rank in range(3)}
    rank_0 = members[0][0]
    for dog, _ in members.values():
        dog.address = rank_0.address
        dog._peers[0] = rank_0.address[:2]
    return now, members


def play_round(members, now, stuck=()):
    """Let every process that is not stuck make a step, then let the watchdogs exchange signs of life."""
    now.time += MAX_INTERVAL / 5
    alive = {rank: member for rank, member in members.items() if rank not in stuck}
    for dog, book in alive.values():
        book.reach(now(), is_step=True)
        if dog is not members[0][0]:
            dog._send(0)
    for rank in alive.keys() - {0}:
        if 0 in alive:
            members[0][0].receive()
            members[rank][0].receive()
    for dog, _ in alive.values():
        dog.check()


@pytest.mark.parametrize(("lost", "first"), [(0, 1), (2, 0)])
def test_when_one_process_stops_the_others_end_and_name_it(job, capfd, lost, first):
    now, members = job
    for _ in range(100):
        play_round(members, now)
    with pytest.raises(Left) as left:
        for _ in range(100):
            play_round(members, now, stuck=[lost])
    assert left.value.args == (2,)
    told = f"ffn: error: rank {first}: rank {lost} did not answer for 10 s (train.stall_seconds), so the job ends. "
    assert capfd.readouterr().err == told + "The same command resumes from the last checkpoint\n"
    if first == 0:
        with pytest.raises(Left):  # rank 0 tells the others
            members[1][0].receive()
        assert capfd.readouterr().err == ""


def test_a_machine_that_slept_is_no_reason_to_end_the_job(job):
    now, members = job
    play_round(members, now)
    now.time += 1000
    for dog, _ in members.values():
        dog.check()


PROCESS = textwrap.dedent(
    """
    import threading, time
    from ffn.training.parallel.watchdog import Attendance, Watchdog

    dog = Watchdog(Attendance(0, 2, 0.5, time.monotonic() - 1e6), False)
    dog.start(dog.address)
    threading.Event().wait()
    """
)


def test_a_process_ends_although_its_main_thread_hangs():
    done = subprocess.run([sys.executable, "-c", PROCESS], capture_output=True, text=True)
    assert done.returncode == 2
    assert "and rank 1" in done.stderr
