"""What this process may use of its machine: cores, their features and time, memory; less in a container or a job."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import resource
from pathlib import Path

from ffn.errors import ConfigError

CGROUPS = Path("/sys/fs/cgroup")
DEVICES = Path("/dev")
OWN_CGROUPS = Path("/proc/self/cgroup")
SLURM_CORES = "SLURM_CPUS_ON_NODE"  # of the job; sites without control groups let it run on all others, too
ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18  # of Linux on x86-64
ISA_LIMIT = "ONEDNN_MAX_CPU_ISA"  # holds oneDNN, and with it TensorFlow and OpenVINO, down to an older CPU
# Levels of that variable that we compare, with the beginnings of Linux's flags that they leave out.
LEFT_OUT = {
    "AVX2": ("avx512", "avx_", "amx"),
    "AVX512_CORE": ("avx512_bf16", "avx512_fp16", "avx512_vnni", "amx"),
    "AVX512_CORE_BF16": ("avx512_fp16", "amx"),
}


def cores_here() -> int:
    """Return how many cores this process may run on; in a job of Slurm, at most as many as the job has on this node."""
    of_job = os.environ.get(SLURM_CORES, "")
    cores = len(os.sched_getaffinity(0))
    return min(cores, int(of_job)) if of_job.isdecimal() and int(of_job) else cores


def usable_cores(cores: int | None = None) -> int:
    """Return how many threads can compute at the same time on these cores, by default all that are here.

    A container with a quota may use the time of fewer cores than it sees. With more threads, it would stand still for
    part of each period.
    """
    return max(1, int(min(cores or cores_here(), quota())))


def threads_here(num_cores: int | None = None) -> int:
    """Return ``OMP_NUM_THREADS``, or if it is not set, how many threads can compute on these cores at the same time."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # of nested levels, the outermost
    if not given:
        return usable_cores(num_cores)
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"OMP_NUM_THREADS: found {given!r}, expected a positive number. Correct or unset it")
    return int(given)


def quota() -> float:
    """Return the cores' worth of time that the control groups of this process allow; infinite without a limit."""
    found = [text.split() for text in _texts("cpu.max")]
    times, periods = (_texts(f"cpu.cfs_{name}_us", "cpu") for name in ("quota", "period"))
    found += map(list, zip(times, periods, strict=False))  # both or none in each folder
    quotas = [int(words[0]) / int(words[1]) for words in found if len(words) == 2 and all(map(str.isdecimal, words))]
    return min(quotas, default=float("inf"))


def memory_mb() -> int:
    """Return the memory of this machine, or of the container or job if that may use less, MB."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    texts = _texts("memory.max") + _texts("memory.limit_in_bytes", "memory")
    limits = [resource.getrlimit(resource.RLIMIT_AS)[0], *(int(text) for text in texts if text.isdecimal())]
    return min([physical, *(limit for limit in limits if limit >= 0)]) // 10**6


def gpus_here() -> int:
    """Return how many GPUs of NVIDIA this process may use: those of the machine that are not hidden from it."""
    devices = len(list(DEVICES.glob("nvidia[0-9]*")))
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return devices
    visible = itertools.takewhile(lambda name: name.strip() not in ("", "-1"), listed.split(","))  # as CUDA reads it
    return min(devices, len(list(visible)))


def _texts(name: str, controller: str = "") -> list[str]:
    """Read a limit of the control group of this process and of those above it.

    With `controller`, those of version 1. In a container, the path of a group may be that on the host.
    """
    root = CGROUPS / controller
    place = root / _own_group(controller).lstrip("/")
    files = [folder / name for folder in (place, *place.parents) if folder.is_relative_to(root)]
    return [line.strip() for file in files for line in _lines(file)]


def _own_group(controller: str) -> str:
    groups = (line.split(":", 2) for line in _lines(OWN_CGROUPS))
    return next((path for _, names, path in groups if controller in names.split(",")), "/")


def cpu_flags() -> frozenset[str]:
    """Return the flags of the first CPU, as Linux names them, without those that `ISA_LIMIT` or Linux holds back.

    Returns
    -------
    frozenset of str
        Empty if Linux does not report them.
    """
    left_out = LEFT_OUT.get(os.environ.get(ISA_LIMIT, "").upper(), ())
    flags = frozenset(flag for flag in _cpuinfo("flags").split() if not flag.startswith(left_out))
    return flags if "amx_tile" not in flags or _may_use_amx() else frozenset(f for f in flags if f[:3] != "amx")


def cpu_name() -> str:
    """Return the model name of the first CPU, empty if Linux does not report it."""
    return _cpuinfo("model name")


@functools.cache
def _may_use_amx() -> bool:
    """Ask Linux for AMX: before 5.16, and in some containers, a process may not use it on a CPU that has it."""
    return ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0


@functools.cache
def _cpuinfo(key: str) -> str:
    lines = _lines(Path("/proc/cpuinfo"))
    return next((line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == key), "")


def _lines(file: Path) -> list[str]:
    """Return the lines of a file; none of one that is missing, hidden, or gone with its control group."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
