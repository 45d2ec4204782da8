"""Fixtures of the tests that train."""

import pytest

from .training_jobs import MODEL, command, make_centers, make_records, make_tubes, succeed

TWO = ["--num-workers", "2", "--batch-size", "2", "--max-steps", "45", "--log-steps", "15"]


@pytest.fixture(scope="session")
def tubes(tmp_path_factory):
    """Folder with volumes and records; shards of unequal length."""
    folder = tmp_path_factory.mktemp("tubes")
    make_tubes(folder)
    make_records(folder / "records", make_centers()[:107], (40, 25, 35, 7))
    return folder


@pytest.fixture(scope="session")
def two(needs_horovod):
    """Options of the job of two processes."""
    return [*MODEL, *TWO]


@pytest.fixture(scope="session")
def undisturbed(tubes, two):
    """Folder of the model that two processes trained without any trouble, with what they told."""
    out = tubes / "undisturbed"
    told = succeed(command(tubes, out, [*two, "--checkpoint-steps", "100"], processes=2), FFN_LOG="DEBUG")
    (out / "told").write_text(told)
    return out
