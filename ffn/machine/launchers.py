"""The launchers of a job's ranks: command lines, and the variables that tell each process its rank."""

from __future__ import annotations

import os
from typing import NamedTuple

from ffn.machine.schedulers import cobalt, pbs, slurm


class RankVariables(NamedTuple):
    """Environment variables with a process's rank and, where there is one, with the number of ranks."""

    rank: str
    size: str | None


HOROVODRUN = RankVariables("HOROVOD_RANK", "HOROVOD_SIZE")
OPEN_MPI = RankVariables("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
PMI = RankVariables("PMI_RANK", "PMI_SIZE")  # MPICH, Slurm
ALPS = RankVariables("ALPS_APP_PE", None)
PALS = RankVariables("PALS_RANKID", None)
PMIX = RankVariables("PMIX_RANK", "SLURM_STEP_NUM_TASKS")
SRUN = RankVariables("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
LOCAL = RankVariables("FFN_RANK", None)  # of `ffn launch`, without any other launcher
# Where a process looks for its rank; the first that is set counts. srun is last, because mpirun starts its own helpers
# with srun.
RANK_VARIABLES = (HOROVODRUN, OPEN_MPI, PMI, ALPS, PALS, PMIX, SRUN)

# Number of a process among those on its machine, and how many these are: `ffn launch` and horovodrun, Open MPI, MPICH.
PLACES = (
    ("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


class Launcher(NamedTuple):
    """How to start the ranks of a job."""

    options: str  # with {ranks}, and {secret} if the launcher passes on only variables that are named
    placing: str  # further options, if the number of ranks on each node is given; with {nodes} or {per_node}
    # A rank finds its number in the first that is set. Those of other launchers do not belong here: a batch script
    # under Slurm has SLURM_PROCID=0, and all processes of its mpiexec inherit that.
    variables: tuple[RankVariables, ...]
    job_id: str = ""  # variable that is set inside a job of the scheduler that it belongs to


SLURM_OPTIONS = "--kill-on-bad-exit=1 --ntasks={ranks}", "--nodes={nodes} --ntasks-per-node={per_node}"
LAUNCHERS = {
    "srun": Launcher(*SLURM_OPTIONS, (SRUN,), slurm.JOB_ID),
    "aprun": Launcher("-n {ranks}", "-N {per_node}", (ALPS, PMI, PMIX), cobalt.JOB_ID),
    "mpiexec": Launcher("-n {ranks}", "--ppn {per_node}", (PALS, PMI, PMIX, OPEN_MPI), pbs.JOB_ID),
    "mpirun": Launcher("-x {secret} -n {ranks}", "--map-by ppr:{per_node}:node", (OPEN_MPI, PMIX, PMI)),
}


class LaunchedRank(NamedTuple):
    """Number of this process, and of all; None if the launcher does not tell."""

    rank: int
    size: int | None


def launched_rank() -> LaunchedRank | None:
    """Return rank and size by the launcher's variables, None if no launcher started this process."""
    for variables in RANK_VARIABLES:
        rank, size = (os.environ.get(name or "", "") for name in variables)
        is_rank = size.isdigit() or variables is not SRUN  # a batch script has SLURM_PROCID too, but is not a rank
        if rank.isdigit() and is_rank:
            return LaunchedRank(int(rank), int(size) if size.isdigit() else None)
    return None


def local_place() -> tuple[int, int]:
    """Return the number of this process among those on this machine, and how many these are, as the launcher tells."""
    told = ([os.environ.get(name, "") for name in names] for names in PLACES)
    return next(((int(rank), int(size)) for rank, size in told if rank.isdigit() and size.isdigit()), (0, 1))
