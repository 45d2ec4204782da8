"""The features of the CPU."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18  # of Linux on x86-64
ISA_LIMIT = "ONEDNN_MAX_CPU_ISA"  # holds oneDNN, and with it TensorFlow and OpenVINO, down to an older CPU
# Levels of that variable that we compare, with the beginnings of Linux's flags that they leave out.
LEFT_OUT = {
    "AVX2": ("avx512", "avx_", "amx"),
    "AVX512_CORE": ("avx512_bf16", "avx512_fp16", "avx512_vnni", "amx"),
    "AVX512_CORE_BF16": ("avx512_fp16", "amx"),
}


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
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == key), "")
