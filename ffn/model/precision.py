"""Choose the number format in which this machine is fast."""

from __future__ import annotations

import logging

from ffn.machine.cpu import cpu_flags

log = logging.getLogger(__name__)

BFLOAT16_FLAGS = {"amx_bf16", "avx512_bf16"}
BFLOAT16_CAPABILITY = (8, 0)  # Ampere, the first NVIDIA GPUs with bfloat16 units


def resolve_precision(precision: str, on_gpu: bool = False) -> str:
    """Return `precision`, or for ``auto`` the one that suits the device; log the choice and the reason.

    Parameters
    ----------
    precision : {'auto', 'float32', 'bfloat16'}
        `auto` takes bfloat16 if the device computes in it (CPU: AMX or AVX512-BF16; GPU: compute capability 8 or more),
        float32 otherwise.
    on_gpu : bool
        Whether the GPUs that TensorFlow sees compute, or the CPU.
    """
    if precision != "auto":
        return precision
    is_fast, reason = _gpus_have_bfloat16() if on_gpu else _cpu_has_bfloat16()
    precision = "bfloat16" if is_fast else "float32"
    log.info("precision auto: %s, because %s", precision, reason)
    return precision


def _cpu_has_bfloat16() -> tuple[bool, str]:
    found = sorted(BFLOAT16_FLAGS & cpu_flags())
    return bool(found), f"the CPU has {', '.join(found)}" if found else "the CPU has neither AMX nor AVX512-BF16"


def _gpus_have_bfloat16() -> tuple[bool, str]:
    """Ask TensorFlow for the oldest GPU."""
    import tensorflow as tf

    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    oldest = min((tuple(each.get("compute_capability", (0, 0))) for each in details), default=(0, 0))
    return oldest >= BFLOAT16_CAPABILITY, f"the GPU has compute capability {'.'.join(map(str, oldest))}"
