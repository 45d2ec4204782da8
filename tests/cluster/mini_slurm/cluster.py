"""The cluster: munge, a controller that is the login node too, and compute nodes."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from .node import Node, Process

NETWORK = "10.77.0"
CONTROLLER = "login"
START_SECONDS = 120  # for daemons that do not start at all; a busy machine takes its time
PROGRAMS = ("slurmctld", "slurmd", "srun", "munged", "ip", "unshare", "nsenter", "setpriv")
PACKAGES = "slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge iproute2"

# Two-node starts of Open MPI take 5 s instead of 15 s when it need not find out how these nodes communicate.
OPEN_MPI = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,vader,tcp",
    "OMPI_MCA_btl_tcp_if_include": "eth0",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl_base_warn_component_unused": "0",
}

SLURM_CONF = """
ClusterName=mini
SlurmctldHost={controller}({network}.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={state}/munge/socket
CredType=cred/munge
StateSaveLocation={state}/state
SlurmdSpoolDir={state}/spool/%n
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd.%n.pid
SlurmctldLogFile={state}/log/slurmctld.log
SlurmdLogFile={state}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0,bf_interval=2
ReturnToService=2
SlurmdParameters=config_overrides
MinJobAge=3600
KillWait={kill_wait}
InactiveLimit=0
SlurmctldTimeout=60
SlurmdTimeout=300
MessageTimeout=100
Waittime=0
PropagateResourceLimits=NONE
MailProg=/bin/true
NodeName={names} NodeAddr={addresses} CPUs={cpus} Sockets=1 CoresPerSocket={cpus} ThreadsPerCore=1 \
RealMemory=16000 State=UNKNOWN
PartitionName=debug Nodes={names} Default=YES MaxTime=INFINITE State=UP OverTimeLimit=0
"""


def unavailable() -> str | None:
    """Say why no cluster can be made on this machine; None if one can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)}: apt-get install --no-install-recommends {PACKAGES}"
    if os.geteuid() != 0:
        return "namespaces and Slurm's daemons need root"
    probe = subprocess.run(
        ["unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "true"], capture_output=True
    )
    return None if probe.returncode == 0 else f"no namespaces here: {probe.stderr.decode().strip()}"


class MiniSlurm:
    """A Slurm cluster for the length of a ``with`` block; also after a kill -9 nothing of it is left running.

    Its folder `state` has configuration, logs, spool, and ``scratch``, which is another tmpfs on every node; all else
    of the host's file system is shared by the nodes, n1, n2, …. From SIGTERM to SIGKILL pass `kill_wait` seconds.
    """

    def __init__(self, state: Path, num_nodes: int = 3, cpus: int = 2, kill_wait: int = 60) -> None:
        self.state = state.resolve()
        self.scratch = self.state / "scratch"
        self._cpus, self._kill_wait = cpus, kill_wait
        self._munged: subprocess.Popen[bytes] | None = None
        self.controller = Node(CONTROLLER, f"{NETWORK}.1", self.state, ["slurmctld", "-D"])
        names = {f"n{number}": f"{NETWORK}.{number + 1}" for number in range(1, num_nodes + 1)}
        self.nodes = {n: Node(n, ip, self.state, ["slurmd", "-D", "-N", n]) for n, ip in names.items()}

    def __enter__(self) -> MiniSlurm:
        """Bring the cluster up."""
        try:
            self._write_files()
            self._start_munge()
            self.controller.boot()
            script = self.state / "login"
            script.write_text(login_script(self.controller, self.state))
            script.chmod(0o755)
            for node in self.nodes.values():
                node.boot(self.controller)
            self.wait_for_nodes()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Take it down."""
        self.down()

    def down(self) -> None:
        """End everything; may be called twice."""
        for node in (*self.nodes.values(), self.controller):
            node.kill()
        if self._munged is not None:
            self._munged.kill()
            self._munged.wait()
            self._munged = None

    def login(self, *command: str) -> list[str]:
        """Return the command line that runs a command on the login node."""
        return [str(self.state / "login"), *command]

    def environment(self) -> dict[str, str]:
        """Return the environment of a user of this cluster."""
        return {**os.environ, **OPEN_MPI, "TMPDIR": str(self.scratch)}

    def run(
        self, *command: str, timeout: float | None = None, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node to its end, with changes of the environment."""
        environment = {**self.environment(), **(variables or {})}
        return subprocess.run(self.login(*command), env=environment, capture_output=True, text=True, timeout=timeout)

    def kill_node(self, name: str) -> None:
        """Pull a node's plug and let Slurm know, which would find out after its SlurmdTimeout."""
        self.nodes[name].kill()
        self.run("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=killed")

    def revive_node(self, name: str) -> None:
        """Boot a killed node again and wait until it can be used."""
        self.nodes[name].boot(self.controller)
        self.wait_for_nodes()

    def processes(self) -> dict[str, list[Process]]:
        """Return, by node, what runs there besides the system's daemons; killed nodes are left out."""
        return {name: node.processes() for name, node in self.nodes.items() if node.is_up}

    def jobs(self) -> list[tuple[str, str, str]]:
        """Return id, state and nodes of the jobs that Slurm has not done with."""
        lines = self.run("squeue", "-h", "-o", "%i|%T|%N").stdout.splitlines()
        return [(number, state, nodes) for number, state, nodes in (line.split("|") for line in lines)]

    def unfinished_jobs(self) -> list[tuple[str, str, str]]:
        """Return jobs that wait or run; of those that ended, Slurm may list some until their dead node is back."""
        return [job for job in self.jobs() if job[1] != "COMPLETING"]

    def wait_until_idle(self) -> None:
        """Wait until no job is left in the queue, and no process on any node."""
        while self.unfinished_jobs() or any(self.processes().values()):
            time.sleep(0.2)

    def wait_for_nodes(self) -> None:
        """Wait until every node that is up is idle or at work."""
        wanted = {name for name, node in self.nodes.items() if node.is_up}

        def ready() -> bool:
            lines = self.run("timeout", "5", "sinfo", "-h", "-N", "-o", "%N %t").stdout.splitlines()
            return wanted <= {line.split()[0] for line in lines if line.endswith((" idle", " mix", " alloc"))}

        wait_until(ready, f"the nodes are not ready, see {self.state}/log")

    def _write_files(self) -> None:
        shutil.rmtree(self.state, ignore_errors=True)
        for folder in ("log", "state", "munge", "spool", "etc", "scratch", *(f"spool/{name}" for name in self.nodes)):
            (self.state / folder).mkdir(parents=True, exist_ok=True)
        Path("/etc/slurm").mkdir(exist_ok=True)  # only to mount on
        (self.state / "munge").chmod(0o711)
        key = self.state / "munge/key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        everyone = (self.controller, *self.nodes.values())
        hosts = ["127.0.0.1 localhost", *(f"{node.address} {node.name}" for node in everyone)]
        (self.state / "hosts").write_text("\n".join(hosts) + "\n")
        (self.state / "etc/slurm.conf").write_text(
            SLURM_CONF.format(
                controller=CONTROLLER,
                network=NETWORK,
                state=self.state,
                kill_wait=self._kill_wait,
                names=",".join(self.nodes),
                addresses=",".join(node.address for node in self.nodes.values()),
                cpus=self._cpus,
            )
        )
        # Elsewhere the PMIx files of the nodes would collide: /tmp is shared by these "machines".
        (self.state / "etc/mpi.conf").write_text(f"PMIxCliTmpDirBase={self.scratch}\n")

    def _start_munge(self) -> None:
        folder = self.state / "munge"
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        # --force: folders above the socket, such as /tmp, may be written to by everyone
        options = ["--foreground", "--force", *(f"--{option}={folder / name}" for option, name in files.items())]
        with (self.state / "log/munged.out").open("ab") as log:
            alive = ["setpriv", "--pdeathsig", "KILL"]
            self._munged = subprocess.Popen([*alive, "munged", *options], stdout=log, stderr=log)
        wait_until((folder / "socket").is_socket, f"munged does not start, see {self.state}/log/munged.out")


def wait_until(condition: Callable[[], object], otherwise: str) -> None:
    """Wait for what a daemon does when it starts."""
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {START_SECONDS} s: {otherwise}")
        time.sleep(0.1)


def login_script(controller: Node, state: Path) -> str:
    """Return a script that runs its arguments on the login node."""
    inside = f'mount --bind {state}/hosts /etc/hosts; mount --bind {state}/etc /etc/slurm; exec "$@"'
    return (
        f'#!/bin/sh\nexec {shlex.join(controller.namespaces())} unshare --mount sh -c {shlex.quote(inside)} sh "$@"\n'
    )
