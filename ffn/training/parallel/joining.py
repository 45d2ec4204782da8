"""Joins the processes that a launcher started into the group of one training job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ffn.errors import TrainError
from ffn.machine.launchers import LaunchedRank, launched_rank
from ffn.training.config import Collective
from ffn.training.parallel import mpi_group
from ffn.training.parallel.horovod_group import HorovodGroup, peer_failures_explained, start_horovod
from ffn.training.parallel.process_group import JoinedGroup, ProcessGroup

LIBRARIES = {"horovod": "Horovod", "mpi": "mpi4py"}
REMEDIES = {
    "horovod": "Check that Horovod was built with MPI ('horovodrun --check-build') and that the launcher is of its MPI",
    "mpi": "Take the launcher of the MPI that mpi4py uses ('ffn doctor' shows it); 'ffn launch' has no MPI",
}


@contextlib.contextmanager
def process_group(num_workers: int, stall_seconds: int, collective: Collective = "horovod") -> Iterator[ProcessGroup]:
    """Join the processes of this job for the length of a ``with`` block; see `TrainConfig` for the parameters."""
    launch = launched_rank()
    if num_workers == 1 and launch in (None, LaunchedRank(0, 1)):
        yield ProcessGroup()
        return
    with _joined(collective, stall_seconds) as group:
        _refuse_copies(launch, group, collective)
        if group.size != num_workers:
            group.fail(
                TrainError(
                    f"train.num_workers: found a job of size {group.size}, expected {num_workers} processes. Launch "
                    f"with 'ffn launch -n {num_workers} -- ffn train …', or as {num_workers} tasks of one MPI job"
                )
            )
        yield group


@contextlib.contextmanager
def _joined(collective: Collective, stall_seconds: int) -> Iterator[JoinedGroup]:
    """Join the processes by the library that the configuration names."""
    if collective == "mpi":
        with mpi_group.joined(stall_seconds) as over_mpi:
            yield over_mpi
        return
    group = HorovodGroup(start_horovod(stall_seconds), stall_seconds)
    with peer_failures_explained(group):
        yield group


def _refuse_copies(launch: LaunchedRank | None, group: ProcessGroup, collective: Collective) -> None:
    """Refuse to run as one of several separate jobs that would all write the same files."""
    if launch is None or group.size > 1 or launch in (LaunchedRank(0, 1), LaunchedRank(0, None)):
        return
    started = f"{launch.size} processes" if launch.size else f"process {launch.rank}"
    raise TrainError(
        f"train.num_workers: the launcher started {started}, but {LIBRARIES[collective]} sees only one, expected one "
        f"job. {REMEDIES[collective]}"
    )
