"""Fixtures of the tests that train."""

import pytest

from .training_jobs import SIX, TWO_FOR_SIX, command, make_centers, make_records, make_tubes, succeed


@pytest.fixture(scope="session")
def tubes(tmp_path_factory):
    """Folder with volumes and records; shards of unequal length."""
    folder = tmp_path_factory.mktemp("tubes")
    make_tubes(folder)
    make_records(folder / "records", make_centers()[:107], (40, 25, 35, 7))
    make_records(folder / "few", make_centers()[:8], (5, 1, 2))  # fewer shards than workers
    return folder


@pytest.fixture(scope="session")
def undisturbed(tubes, needs_horovod):
    """Folder of the model that two processes trained without any trouble; it keeps all checkpoints."""
    out = tubes / "undisturbed"
    every = ["--checkpoint-steps", "1", "--keep-checkpoints", "20"]
    succeed(command(tubes, out, [*SIX, *TWO_FOR_SIX, *every], processes=2, records="few"))
    return out
