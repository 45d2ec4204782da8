"""The number format in which this machine is fast: known from the device, or measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ffn.machine.cpu import cpu_flags
from ffn.machine.jax_device import jax_gpus

PRECISIONS = ("float32", "bfloat16")
BFLOAT16_CAPABILITY = (8, 0)  # Ampere, the first NVIDIA GPUs with bfloat16 units
WORTHWHILE = 1.05  # bfloat16 has to be this much faster: float32 is more accurate, and rates vary; our choice


def fastest_precision(
    on_gpu: bool, measure: Callable[[], Mapping[str, float]], engine: str = "tensorflow"
) -> tuple[str, str]:
    """Return the precision that is fastest here, and why.

    Parameters
    ----------
    on_gpu : bool
        Whether the GPUs that the engine sees compute, or the CPU.
    measure : callable
        Returns FOVs/s by precision. It is called only where the device does not tell.
    engine : str
        What computes on GPUs: ``tensorflow`` or ``jax``.

    Notes
    -----
    AMX computes several times as many products in bfloat16. Without AVX512-BF16, bfloat16 is emulated, which is slower.
    With AVX512-BF16 alone it depends on the CPU: on Xeons, float32 was 1.7 to 1.9 times as fast.
    """
    precision, reason = _gpus_tell(engine) if on_gpu else _cpu_tells()
    if precision is None:
        rates = measure()
        precision = "bfloat16" if rates["bfloat16"] > WORTHWHILE * rates["float32"] else "float32"
        reason = "measured " + ", ".join(f"{name}: {rate:.1f} FOVs/s" for name, rate in rates.items())
    return precision, reason


def _cpu_tells() -> tuple[str | None, str]:
    flags = cpu_flags()
    if "amx_bf16" in flags:
        return "bfloat16", "the CPU has AMX"
    return (None, "") if "avx512_bf16" in flags else ("float32", "the CPU has neither AMX nor AVX512-BF16")


def _gpus_tell(engine: str) -> tuple[str, str]:
    """Ask TensorFlow or JAX for the oldest GPU."""
    oldest = min(_jax_capabilities() if engine == "jax" else _tensorflow_capabilities(), default=(0, 0))
    precision = "bfloat16" if oldest >= BFLOAT16_CAPABILITY else "float32"
    return precision, f"the GPU has compute capability {'.'.join(map(str, oldest))}"


def _tensorflow_capabilities() -> list[tuple[int, ...]]:
    import tensorflow as tf

    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return [tuple(each.get("compute_capability", (0, 0))) for each in details]


def _jax_capabilities() -> list[tuple[int, ...]]:
    found = [str(getattr(gpu, "compute_capability", "0.0")) for gpu in jax_gpus()]
    return [tuple(map(int, text.split("."))) if text.replace(".", "").isdigit() else (0, 0) for text in found]
