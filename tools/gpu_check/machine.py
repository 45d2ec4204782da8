"""The machine without our network: versions, ceilings, and what cuDNN reaches without XLA."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .common import TINY, Report, seconds_until

PACKAGES = "jax jaxlib jax-cuda13-plugin nvidia-cudnn-cu13 numpy h5py tensorstore scikit-image pydantic torch".split()
QUERY = "name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.limit,temperature.gpu"
MODULES = ("ffn.inference.segment", "ffn.inference.device.lanes", "ffn.training.train", "ffn.training.jax_learner")
TRIPS = 300


def versions(report: Report) -> None:
    """Report packages, card and driver, and import everything that later steps need."""
    found = {name: version_of(name) for name in PACKAGES}
    report.add(python=platform.python_version(), cpus=os.cpu_count(), **found)
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv"]
        report.add(nvidia_smi=subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    import jax

    report.add(devices=[f"{device} {device.device_kind}" for device in jax.devices()], backend=jax.default_backend())
    for module in MODULES:
        with report.case(module):
            importlib.import_module(module)
            report.add(imported=module)


def version_of(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def ceilings(report: Report) -> None:
    """Measure what nothing exceeds: matrix products of random data, copies, and round trips of the host."""
    matrix_products(report)
    device_copy(report)
    round_trips(report)
    transfers(report)


def matrix_products(report: Report) -> None:
    """Multiply two matrices of random numbers: constant ones can be faster."""
    import jax

    side = 512 if TINY else 8192
    matrix = jax.random.normal(jax.random.key(0), (side, side))
    for name, exact in (("bfloat16", None), ("float16", None), ("float32", None), ("float32", "highest")):
        product = jax.jit(lambda x, exact=exact: jax.numpy.matmul(x, x, precision=exact))
        operand = matrix.astype(name)
        with report.case(name):
            seconds, _ = report.seconds_of(lambda call=product, x=operand: call(x), 0.3)  # type: ignore[misc]
            report.add(matmul=name, precision=exact, tflops=round(2 * side**3 / seconds / 1e12, 1))


def device_copy(report: Report) -> None:
    """Read and write a large array on the device."""
    import jax

    large = jax.random.normal(jax.random.key(0), (10**6 if TINY else 10**9,))
    add_one = jax.jit(lambda array: array + 1)
    seconds, _ = report.seconds_of(lambda: add_one(large), 0.3)
    report.add(copy_tb_per_s=round(2 * large.nbytes / seconds / 1e12, 2))


def round_trips(report: Report) -> None:
    """Time a call as small as one step of 8 canvases, with all weights as arguments and with one array."""
    import jax

    weights = [jax.numpy.ones(32) for _ in range(50)]
    requests = np.zeros((8, 61), np.int32)
    call = jax.jit(lambda params, rows: rows[:, :31] * 2 + params[0][0].astype(np.int32), keep_unused=True)
    for params in (weights, weights[:1]):
        np.asarray(call(params, requests))
        seconds = seconds_until(repeated(lambda params=params: np.asarray(call(params, requests))))  # type: ignore[misc]
        report.add(round_trip_with_arrays=len(params), us=round(seconds / TRIPS * 1e6, 1))


def repeated(call: Callable[[], Any]) -> Callable[[], None]:
    """Return a function that calls another `TRIPS` times."""

    def work() -> None:
        for _ in range(TRIPS):
            call()

    return work


def transfers(report: Report) -> None:
    """Copy a batch of training to the device, and a canvas of 250³ voxels back."""
    import jax

    batch = np.ones((8, 4, 33, 33, 33), np.float32)
    seconds, _ = report.seconds_of(lambda: jax.device_put(batch), 0.2)
    report.add(to_device_gb_per_s=round(batch.nbytes / seconds / 1e9, 2))
    canvas = jax.numpy.ones((40 if TINY else 250,) * 3)
    add_one = jax.jit(lambda array: array + 1)
    fresh = [jax.block_until_ready(add_one(canvas)) for _ in range(4)]  # JAX keeps what it has copied to the host
    seconds = min(seconds_until(lambda array=array: np.asarray(array)) for array in fresh)  # type: ignore[misc]
    report.add(to_host_gb_per_s=round(canvas.nbytes / seconds / 1e9, 2))


def torchconv(report: Report) -> None:
    """Time one convolution of 32 channels in PyTorch: what cuDNN reaches without XLA's choices."""
    try:
        import torch
    except ModuleNotFoundError:
        report.add(skipped="PyTorch is not installed")
        return
    if not torch.cuda.is_available():
        report.add(skipped="PyTorch sees no GPU")
        return
    torch.backends.cudnn.benchmark = True
    for dtype in (torch.bfloat16, torch.float16):
        for layout in (torch.channels_last_3d, torch.contiguous_format):
            for batch in (1, 8, 32):
                name = f"{dtype} {layout} {batch}"
                if not report.has_time(3, name):
                    return
                with report.case(name):
                    seconds = seconds_of_torch_conv(torch, batch, dtype, layout)
                    rate = 2 * 27 * 32**2 * 33**3 * batch / seconds / 1e12
                    report.add(conv3d=name, us=round(seconds * 1e6, 1), tflops=round(rate, 1))


def seconds_of_torch_conv(torch: Any, batch: int, dtype: Any, layout: Any) -> float:
    """Return the seconds of one convolution, the mean of 50."""
    conv = torch.nn.Conv3d(32, 32, 3, padding=1).cuda().to(dtype).to(memory_format=layout)
    image = torch.randn(batch, 32, 33, 33, 33, device="cuda", dtype=dtype).to(memory_format=layout)
    with torch.no_grad():
        for _ in range(5):
            conv(image)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(50):
            conv(image)
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / 50
