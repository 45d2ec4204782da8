"""One machine of the cluster: a process with a separate network, host name, process ids and mounts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

# Process 1 of a node. $0 is the host name, $1 the state folder, $2 the address, the rest the node's daemon. What is
# node-local here: shared memory but for the folders of tests, and the scratch folder, which every node sees at the same
# path.
BOOT = """
hostname "$0"
mount --bind "$1/hosts" /etc/hosts
mount --bind "$1/etc" /etc/slurm
mount --bind /dev/shm /mnt
mount -t tmpfs -o size=2g shm /dev/shm
for tests in /mnt/pytest-of-*; do
    [ -d "$tests" ] && mkdir "/dev/shm/${tests#/mnt/}" && mount --bind "$tests" "/dev/shm/${tests#/mnt/}"
done
mount -t tmpfs -o size=1g scratch "$1/scratch"
ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip address add "$2/24" dev eth0
ip link set eth0 up
shift 2
"$@" &
wait $!
"""


class Process(NamedTuple):
    """A process of a node, by its number on the host."""

    pid: int
    command: str


class Node:
    """A machine with one daemon: its host name, its IPv4 address in the cluster's /24, and the cluster's folder."""

    def __init__(self, name: str, address: str, state: Path, daemon: Sequence[str]) -> None:
        self.name = name
        self.address = address
        self._state = state
        self._daemon = daemon
        self._machine: subprocess.Popen[bytes] | None = None

    @property
    def is_up(self) -> bool:
        """Whether the machine runs."""
        return self._machine is not None and self._machine.poll() is None

    @property
    def pid(self) -> int:
        """Process that holds the namespaces."""
        assert self._machine is not None, f"{self.name} is not up"
        return self._machine.pid

    def boot(self, bridge: Node | None = None) -> None:
        """Start the machine, on a new network or on the bridge of another machine."""
        # The machine dies with the process that booted it, and everything on it with its process 1.
        alone = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--uts", "--ipc", "--pid", "--mount"]
        inside = ["--fork", "--kill-child=KILL", "--mount-proc", "bash", "-c", BOOT, self.name, str(self._state)]
        command = [*alone, *inside, self.address, *self._daemon]
        with (self._state / f"log/{self.name}.out").open("ab") as log:
            self._machine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._await_namespaces()
        if bridge is None:
            self.run("ip", "link", "add", "eth0", "type", "bridge")
        else:
            cable = f"v{self.address.rpartition('.')[2]}"
            _plug(bridge, "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
            _plug(bridge, "set", cable, "master", "eth0", "up")

    def kill(self) -> None:
        """Pull the plug: every process ends at once and the network goes silent."""
        if self._machine is not None:
            self._machine.kill()
            self._machine.wait()
            self._machine = None

    def namespaces(self) -> list[str]:
        """Return what precedes a command that is to run with the host name and network of this machine."""
        return ["nsenter", "--target", str(self.pid), "--net", "--uts"]

    def processes(self) -> list[Process]:
        """Return everything that runs there besides process 1 and the daemon."""
        inside = os.readlink(f"/proc/{self.pid}/ns/pid_for_children")
        found = (_process(entry, inside) for entry in Path("/proc").glob("[0-9]*"))
        return [p for p in found if p is not None and not p.command.startswith(f"{self._daemon[0]} -D")]

    def run(self, *command: str) -> None:
        """Run a command there as root, with the machine's own mounts and processes too."""
        inside = ["--mount", f"--pid=/proc/{self.pid}/ns/pid_for_children"]
        subprocess.run([*self.namespaces(), *inside, *command], check=True)

    def _await_namespaces(self) -> None:
        """Wait until `unshare` is out of the host's namespaces and its process 1 lives."""
        own = os.readlink("/proc/self/ns/pid")
        for _ in range(12000):
            with contextlib.suppress(FileNotFoundError):  # what its children's namespace has before there is a child
                if os.readlink(f"/proc/{self.pid}/ns/pid_for_children") != own:
                    return
            time.sleep(0.01)
        raise RuntimeError(f"{self.name} did not boot, see {self._state}/log/{self.name}.out")


def send(processes: Iterable[Process], what: signal.Signals) -> None:
    """Send a signal to processes."""
    for process in processes:
        os.kill(process.pid, what)


def _plug(bridge: Node, *command: str) -> None:
    """Change the links of a bridge; with the host's view of processes, which are given by their numbers there."""
    subprocess.run([*bridge.namespaces(), "ip", "link", *command], check=True)


def _process(entry: Path, namespace: str) -> Process | None:
    """Return the process of a folder in /proc if it lives in a PID namespace, is not its first and no zombie."""
    try:
        if os.readlink(entry / "ns/pid") != namespace:
            return None
        fields = dict(line.split(":", 1) for line in (entry / "status").read_text().splitlines())
        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    hidden = fields["State"].strip().startswith("Z") or fields["NSpid"].split()[-1] == "1"
    return None if hidden else Process(int(entry.name), command)
