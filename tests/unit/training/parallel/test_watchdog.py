"""The watchdog names who is stuck or gone, ends the job only for that, and ends all of it."""

import re
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from ffn.training.parallel.watchdog import MESSAGE, Attendance, Watchdog

LIMIT = 10.0


def attendance(rank=0, size=3, steps=2):
    """Attendance of a process that has made steps, at time 0."""
    book = Attendance(rank, size, LIMIT, 0.0)
    for _ in range(steps):
        book.reach(0.0, is_step=True)
    return book


def test_a_process_that_is_silent_for_longer_than_the_limit_is_named():
    book = attendance()
    for now in range(0, 40, 4):
        book.reach(now, is_step=True)
        book.hear(1, now, now)
        if now < 20:
            book.hear(2, now, now)
            assert book.problem(now) is None
    assert book.problem(26) is None  # last heard at 16
    assert book.problem(26.5) == "rank 2 did not answer for 10 s"


def test_silence_counts_before_the_first_step_too_but_only_of_who_was_heard():
    book = attendance(steps=0)
    book.hear(2, 0, 1.0)
    assert book.problem(11.0) is None
    assert book.problem(11.1) == "rank 2 did not answer for 10 s"
    assert attendance(steps=0).problem(1800.0) is None  # nobody: their way to here may be blocked


def test_who_lives_but_does_not_go_on_is_named():
    book = attendance()
    for now in (5, 11):
        book.hear(1, 2, now)
        book.hear(2, 1, now)
    assert book.problem(10) is None
    assert book.problem(11) == "rank 2 did not go on for 10 s while others waited"


def test_the_first_step_may_take_longer():
    book = attendance(size=2, steps=1)
    book.hear(1, 1, 99)
    assert book.problem(100) is None
    book.hear(1, 0, 1800)
    assert book.problem(1801) == "rank 1 did not go on for 1800 s while others waited"  # but not for ever
    book.reach(100, is_step=True)
    book.hear(1, 1, 111)
    assert book.problem(111) == "rank 1 did not go on for 10 s while others waited"


def test_a_standstill_that_no_process_explains_ends_the_job_as_well():
    book = attendance(size=2)
    book.hear(1, 2, 11)
    assert re.match("no step ended for 10 s, though", book.problem(11))
    assert attendance(size=4).problem(11) == "no step ended for 10 s, and nothing was ever heard of ranks 1, 2, 3"
    many = attendance(size=100).problem(11)
    assert many.endswith("99 processes (ranks 1, 2, 3, 4, 5, 6, 7, 8, …)")


def test_others_leave_the_verdict_to_rank_0_unless_that_is_gone():
    book = attendance(rank=1)
    book.hear(0, 2, 0)
    book.hear(0, 2, 11)
    assert book.problem(12) is None
    assert book.problem(15.1).startswith("no step ended for 15 s")
    assert book.problem(21.1) == "rank 0 did not answer for 10 s"


def test_a_process_that_was_asleep_itself_blames_nobody_for_it():
    book = attendance()
    book.hear(1, 2, 1)
    book.forgive(100)
    assert book.problem(105) is None
    assert book.problem(112) == "rank 1 did not answer for 10 s"


def test_what_is_meant_for_rank_0_of_another_machine_is_not_heard():
    book = Attendance(2, 3, 1000.0, time.monotonic())
    dog = Watchdog(book)
    dog.start(dog.address)  # rank 0 listens at the same port, elsewhere
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for rank, reached in ((1, 1), (0, 7)):
            sender.sendto(MESSAGE.pack(dog.address.token, rank, reached, False), ("127.0.0.1", dog.address.port))
    deadline = time.monotonic() + 30
    while 0 not in book.reached and time.monotonic() < deadline:
        time.sleep(0.01)
    assert book.reached == {2: 0, 0: 7}


PROCESS = textwrap.dedent(
    """
    import sys, time
    from ffn.training.parallel.watchdog import Address, Attendance, Watchdog

    rank, limit = int(sys.argv[1]), float(sys.argv[2])
    book = Attendance(rank, 3, limit, time.monotonic())
    dog = Watchdog(book)
    if rank == 0:
        hosts, port, token = dog.address
        print(",".join(hosts), port, token.hex(), flush=True)
        address = dog.address
    else:
        hosts, port, token = sys.argv[3:]
        address = Address(tuple(hosts.split(",")), int(port), bytes.fromhex(token))
    dog.start(address)
    while True:
        book.reach(time.monotonic(), is_step=True)
        time.sleep(0.05)
    """
)


@pytest.fixture
def job():
    """Three processes that only watch each other."""
    processes = []

    def start(rank, *words):
        command = [sys.executable, "-c", PROCESS, str(rank), "1.5", *words]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    words = start(0).stdout.readline().split()
    for rank in (1, 2):
        start(rank, *words)
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("lost", [0, 2])
def test_when_one_process_stops_all_others_end_and_one_tells_why(job, lost):
    with pytest.raises(subprocess.TimeoutExpired):  # a while longer than the limit
        job[1].wait(3)
    assert all(process.poll() is None for process in job)
    job[lost].send_signal(19)
    others = [process for rank, process in enumerate(job) if rank != lost]
    errors = [process.communicate(timeout=30)[1] for process in others]
    assert [process.returncode for process in others] == [2, 2]
    told = [error for error in errors if error]
    assert told and all(f"rank {lost} did not answer for 1.5 s (train.stall_seconds)" in error for error in told)
    assert job[lost].poll() is None  # stopped processes cannot end: that is the launcher's task
