"""The batch schedulers of clusters, and the launchers of ranks: their command lines, answers, and variables."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class BatchJob:
    """A job, as a scheduler needs to know it."""

    name: str  # shown in the queue
    nodes: int
    threads: int  # of a job that is not MPI
    gpus: int  # of each node
    minutes: int  # walltime
    is_mpi: bool  # whether the job starts its processes itself
    site: Mapping[str, Any]  # all resources, including those that only this scheduler knows
    outputs: tuple[str, ...] = ()

    def options(self, names: Mapping[str, str]) -> list[str]:
        """Return command-line options from the resources that `names` maps them to; those without a value are left out.

        Examples
        --------
        >>> job = BatchJob("ffn-train", 1, 1, 0, 9, False, site={"queue": "prod", "account": ""})
        >>> job.options({"-q": "queue", "-A": "account"})
        ['-q', 'prod']
        """
        given = ((option, self.site.get(name)) for option, name in names.items())
        return [word for option, value in given if value for word in (option, str(value))]


class Scheduler(ABC):
    """A scheduler. Commands are lists of words."""

    name: str
    JOB_ID: str  # environment variable that holds the id inside a job
    id_pattern: str  # of the line with the id that the submit command prints, possibly after remarks
    commands: tuple[str, str, str]  # with which jobs are submitted, listed and cancelled

    @abstractmethod
    def submit_command(self, job: BatchJob, script: str, log: str) -> list[str]:
        """Return the command that submits a script."""

    def job_id(self, output: str) -> str | None:
        """Return the id in the output of that command, None if there is none."""
        ids = re.findall(rf"^\s*({self.id_pattern})\s*$", output, re.MULTILINE)
        return ids[-1] if ids else None

    def on_node(self, job: BatchJob) -> str:
        """Return the start of a command on a compute node; empty if scripts run there."""
        return ""

    @abstractmethod
    def queue_command(self, ids: Sequence[str]) -> list[str]:
        """Return the command that lists these jobs."""

    @abstractmethod
    def queued(self, done: Done) -> set[str] | None:
        """Return the ids of the jobs that have not ended, None if the scheduler did not answer."""

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        """Return the command that cancels these jobs."""
        return [self.commands[2], *ids]


class Cobalt(Scheduler):
    """Scripts run on a service node, and qstat does not know jobs that have ended."""

    name, JOB_ID, id_pattern = "cobalt", "COBALT_JOBID", r"\d+"
    commands = ("qsub", "qstat", "qdel")

    def submit_command(self, job: BatchJob, script: str, log: str) -> list[str]:
        """Return the qsub command of a job."""
        command = ["qsub", "-n", str(job.nodes), "-t", str(job.minutes), "--mode", "script"]
        command += ["--jobname", job.name, "-o", log, "-e", log]
        return [*command, *job.options({"-q": "queue", "-A": "account", "--attrs": "cobalt_attrs"}), script]

    def on_node(self, job: BatchJob) -> str:
        """Return the launcher of one process, without binding, so that the jobs of a group share all cores."""
        return f"aprun -n 1 -N 1 -d {job.threads} -j 1 -cc none"

    def queue_command(self, ids: Sequence[str]) -> list[str]:
        """Return the qstat command for these jobs."""
        return ["qstat", "--header", "JobID:State", *ids]

    def queued(self, done: Done) -> set[str] | None:
        """Return the listed jobs; if all jobs have ended, qstat prints nothing and exits with 1."""
        if done.returncode != 0 and done.stderr.strip():
            return None
        return set(re.findall(r"^\s*(\d+)\s+\S", done.stdout, re.MULTILINE))


class Pbs(Scheduler):
    """PBS Professional: scripts run on the first compute node, and qstat complains about jobs that have ended."""

    name, JOB_ID, id_pattern = "pbs", "PBS_JOBID", r"\d+\.\S+"
    commands = ("qsub", "qstat", "qdel")
    ENDED = ("F", "X")  # finished and expired, listed only where the site keeps a history
    FORGOTTEN = ("Unknown Job Id", "has finished")

    def submit_command(self, job: BatchJob, script: str, log: str) -> list[str]:
        """Return the qsub command of a job; after a preemption or the loss of a node, PBS starts it again."""
        hours, minutes = divmod(job.minutes, 60)
        wanted = [self._chunk(job), "place=scatter", f"walltime={hours:02d}:{minutes:02d}:00"]
        if job.site.get("pbs_filesystems"):
            wanted.append(f"filesystems={job.site['pbs_filesystems']}")
        command = ["qsub", *(word for each in wanted for word in ("-l", each)), "-r", "y"]
        command += ["-N", job.name, "-j", "oe", "-o", log]
        return [*command, *job.options({"-q": "queue", "-A": "account"}), script]

    def queue_command(self, ids: Sequence[str]) -> list[str]:
        """Return the qstat command for these jobs."""
        return ["qstat", "-f", *ids]

    def queued(self, done: Done) -> set[str] | None:
        """Return the jobs that have not ended; qstat fails if it has forgotten one of them.

        This reads text because the JSON of `qstat -F json` is broken where a job's environment has quotes or
        backslashes (openpbs issue 2541; seen on Polaris, balsam issue 324), and because qstat's table cuts long ids.
        """
        complaints = [line for line in done.stderr.splitlines() if line.strip()]
        only_forgotten = complaints and all(any(words in line for words in self.FORGOTTEN) for line in complaints)
        if done.returncode != 0 and not only_forgotten:
            return None
        states = re.findall(r"^Job Id: *(\S+)$.*?^ +job_state = (\w)$", done.stdout, re.MULTILINE | re.DOTALL)
        return {job for job, state in states if state not in self.ENDED}

    def _chunk(self, job: BatchJob) -> str:
        """Return the resources of the job, equal for each of its nodes."""
        ranks = -(-int(job.site["tasks"]) // job.nodes) if job.is_mpi else 1
        chunk = [f"select={job.nodes}", f"ncpus={job.site.get('cores_per_node', job.threads * ranks)}"]
        if job.is_mpi:
            chunk.append(f"mpiprocs={ranks}")  # lines for each node in the list of nodes, which are Open MPI's slots
        if job.gpus:
            chunk.append(f"ngpus={job.gpus}")
        if job.site.get("pbs_select"):
            chunk.append(str(job.site["pbs_select"]))
        return ":".join(chunk)


class Slurm(Scheduler):
    """Scripts run on the first compute node."""

    name, JOB_ID, id_pattern = "slurm", "SLURM_JOB_ID", r"\d+"
    commands = ("sbatch", "squeue", "scancel")
    JOB_END_TIME = "SLURM_JOB_END_TIME"  # seconds since 1970
    # Resources that the site names, and the options of sbatch for them.
    SITE_NAMES = {"queue": "partition"} | {name: name for name in ("account", "constraint", "qos", "reservation")}
    ACTIVE = "PENDING,CONFIGURING,RUNNING,COMPLETING,SUSPENDED,REQUEUED,RESIZING,SIGNALING,STAGE_OUT,STOPPED"

    def submit_command(self, job: BatchJob, script: str, log: str) -> list[str]:
        """Return the sbatch command of a job; a failure is for Snakemake, unless `slurm_extra` has --requeue."""
        log = log.replace("%", "%%")  # a single one starts a pattern such as %j
        command = ["sbatch", "--parsable", "--no-requeue", f"--job-name={job.name}", f"--output={log}"]
        command += [f"--nodes={job.nodes}", f"--ntasks={job.site.get('tasks', 1) if job.is_mpi else 1}"]
        command += [f"--cpus-per-task={job.threads}", f"--time={job.minutes}"]
        if job.site.get("mem_mb"):  # not where the profile says 0, because some sites refuse the option
            command.append(f"--mem={job.site['mem_mb']}")
        if job.gpus:
            command.append(f"--gpus-per-node={job.gpus}")  # --ntasks-per-gpu would start more processes
        command += [f"--{option}={job.site[name]}" for name, option in self.SITE_NAMES.items() if job.site.get(name)]
        return [*command, *shlex.split(str(job.site.get("slurm_extra", ""))), script]

    def job_id(self, output: str) -> str | None:
        """Return the id in ``ID`` or ``ID;CLUSTER``."""
        return super().job_id(output.partition(";")[0])

    def queue_command(self, ids: Sequence[str]) -> list[str]:
        """Return the squeue command for all jobs of this user; with ids, it would fail if one of them is unknown."""
        return ["squeue", "--noheader", "--me", f"--states={self.ACTIVE}", "--format=%i"]

    def queued(self, done: Done) -> set[str] | None:
        """Return the listed jobs."""
        return set(done.stdout.split()) if done.returncode == 0 else None

    def outside_job(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return an environment without the variables that describe the job this process runs in.

        Examples
        --------
        >>> slurm.outside_job({"SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/slurm.conf"})
        {'SLURM_CONF': '/etc/slurm.conf'}
        """
        return {name: v for name, v in environment.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}


cobalt = Cobalt()
pbs = Pbs()
slurm = Slurm()
SCHEDULERS: dict[str, Scheduler] = {scheduler.name: scheduler for scheduler in (cobalt, pbs, slurm)}


def current_job_id() -> str | None:
    """Return the id of the job that this process runs in, None outside of any job."""
    variables = (scheduler.JOB_ID for scheduler in SCHEDULERS.values())
    return next((os.environ[name] for name in variables if name in os.environ), None)


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
        # a batch script has SLURM_PROCID too, but is not a rank
        if rank.isdigit() and (size.isdigit() or variables is not SRUN):
            return LaunchedRank(int(rank), int(size) if size.isdigit() else None)
    return None


def local_place() -> tuple[int, int]:
    """Return the number of this process among those on this machine, and how many these are, as the launcher tells."""
    told = ([os.environ.get(name, "") for name in names] for names in PLACES)
    return next(((int(rank), int(size)) for rank, size in told if rank.isdigit() and size.isdigit()), (0, 1))
