"""What this machine has for a network: cores, vector units, GPUs, memory; and what makes it slow."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ffn.machine.cpu import ISA_LIMIT, LEFT_OUT, cpu_flags, cpu_name
from ffn.machine.gpu_evidence import Card, cards
from ffn.machine.limits import cores_here, memory_mb, quota
from ffn.machine.threads import threads_here

UNITS = {"amx_bf16": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}  # by the flag of the CPU, fastest first
LACKING = {
    "AVX-512": "the CPU has no AMX",
    "AVX2": "the CPU has neither AMX nor AVX-512",
    "": "the CPU has neither AMX nor AVX-512 nor AVX2",
}
BUSY = 0.25  # load per core from which others are named; our choice


@dataclass(frozen=True)
class Machine:
    """What this process finds.

    Parameters
    ----------
    cores : int
        Cores that this process may run on, at most those of its job.
    cpu : str
        Name of the CPU, empty if unknown.
    units : str
        Fastest vector units, one of `UNITS`, or empty.
    cards : tuple of Card
        GPUs that the driver knows.
    memory_mb : int
        Memory of the machine, or of the container if that is less.
    threads : int
        Threads that jobs take: ``OMP_NUM_THREADS``, else as many as can compute at the same time.
    quota : float
        Cores' worth of time that the container may use; infinite without a limit.
    load : float
        Processes that run, over the last minute, on the whole machine.
    isa_limit : str
        ``ONEDNN_MAX_CPU_ISA``, empty if not set.
    all_cores : int
        Cores of the whole machine, 0 if unknown.
    """

    cores: int
    cpu: str = ""
    units: str = ""
    cards: tuple[Card, ...] = ()
    memory_mb: int = 0
    threads: int = 0
    quota: float = float("inf")
    load: float = 0.0
    isa_limit: str = ""
    all_cores: int = 0

    @property
    def title(self) -> str:
        """What it has, in one line.

        Examples
        --------
        >>> Machine(2, "Some CPU", "AVX2", memory_mb=24_000).title
        '2 cores (Some CPU, AVX2), no GPU, 24 GB of memory'
        """
        names = sorted({card.name for card in self.cards})
        gpus = f"{len(self.cards)} GPUs ({', '.join(names)})" if names else "no GPU"
        cpu = ", ".join(filter(None, (self.cpu, self.units or "no AVX2")))
        time = f"the time of {self.quota:g} of " if self.quota < self.cores else ""
        return f"{time}{self.cores} cores ({cpu}), {gpus}, {self.memory_mb / 1000:.0f} GB of memory"

    @property
    def slowed_by(self) -> list[str]:
        """What makes it slow, a line each."""
        found = []
        useful = max(1, int(min(self.cores, self.quota)))  # threads
        if self.isa_limit.upper() in LEFT_OUT:
            found.append(f"{ISA_LIMIT}={self.isa_limit} holds the CPU back. Unset it")
        elif not self.cards and self.units != "AMX":
            found.append(f"{LACKING[self.units]} (with AMX, bfloat16 is 4 to 6 times as fast as float32)")
        if self.quota < self.cores:
            remedy = f"Raise the quota, or set OMP_NUM_THREADS={useful}" if self.threads > useful else "Raise the quota"
            found.append(f"the container may use the time of {self.quota:g} of {self.cores} cores. {remedy}")
        if 0 < self.threads < useful:
            found.append(f"OMP_NUM_THREADS={self.threads} of {self.cores} cores. Raise or unset it")
        if 0 < BUSY * self.all_cores < self.load:
            busy = min(self.load, self.all_cores)
            found.append(f"other processes keep about {busy:.1f} of {self.all_cores} cores of the machine busy")
        return found


def this_machine() -> Machine:
    """Describe this machine, without TensorFlow."""
    flags = cpu_flags()
    cores = cores_here()
    return Machine(
        cores,
        cpu_name(),
        next((name for flag, name in UNITS.items() if flag in flags), ""),
        cards()[0],
        memory_mb(),
        threads_here(cores),
        quota(),
        os.getloadavg()[0],
        os.environ.get(ISA_LIMIT, ""),
        os.cpu_count() or 0,
    )
