"""Stops this process at the point that $FFN_TEST_PAUSE names; see tests/pauses.py. Python imports it at its start."""

import functools
import importlib
import itertools
import json
import os
import signal
import sys

RANKS = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")


def arm(word, function, calls, before, rank, token, name):
    """Replace the function by one that stops the process; see `Pause` for what the arguments mean."""
    if not any(word in argument for argument in sys.orig_argv):
        return
    if rank is not None and str(rank) != next((os.environ[name] for name in RANKS if name in os.environ), None):
        return
    module, _, path = function.partition(":")
    *owners, last = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    original, numbers = getattr(owner, last), itertools.count(1)

    def stop():
        if token is None or is_first(token):
            os.kill(os.getpid(), signal.SIGSTOP)

    @functools.wraps(original)
    def pausing(*arguments, **options):
        due = next(numbers) == calls
        if due and before:
            stop()
        result = original(*arguments, **options)
        if due and not before:
            stop()
        return result

    setattr(owner, last, pausing)


def is_first(token):
    """Whether no other process was here."""
    try:
        os.close(os.open(token, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


if "FFN_TEST_PAUSE" in os.environ:
    arm(**json.loads(os.environ["FFN_TEST_PAUSE"]))
