"""Engines that run the network on CPUs: OpenVINO and our own kernels. JAX has its own canvases, see `device`."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ffn.errors import ConfigError
from ffn.kernels.inference import KernelNetwork, obstacle
from ffn.machine.cpu import cpu_flags
from ffn.machine.limits import threads_here
from ffn.model.network import conv_names, openvino_network
from ffn.model.store import Model

if TYPE_CHECKING:
    import openvino

log = logging.getLogger(__name__)


class Engine(Protocol):
    """The network as a function."""

    name: str

    def predict(self, image: np.ndarray, pom_logit: np.ndarray) -> np.ndarray:
        """Return the updated POM in logits (float32, (B, Z, Y, X)), which the caller may change.

        `image` is normalised; B is at most the batch size of the engine.
        """
        ...


class OpenVinoEngine:
    """The network in OpenVINO, without TensorFlow; the threads share the FOVs of a batch.

    Notes
    -----
    Every FOV is one request, and there are as many streams as requests that can run at once. On 2 AMX cores (depth 12,
    bfloat16), no way of batching FOVs was clearly faster than one FOV on both threads. All ways gave the same logits,
    bit for bit, so neither batch size nor stream changes a result.

    OpenVINO would bind the threads of every process to the first cores, so that jobs side by side shared one core and
    left the others idle. On cores that the scheduler or ``taskset`` gives to this process, it stays in any case.
    """

    def __init__(self, model: Model, precision: str, threads: int, batch_size: int) -> None:
        try:
            import openvino
        except ImportError:
            raise ConfigError(
                "engine: found openvino, which is not installed here. Install it, or choose kernels"
            ) from None

        if precision == "bfloat16" and "avx512f" not in cpu_flags():
            raise ConfigError(
                "precision: found bfloat16, OpenVINO computes in float32 on this CPU, which has no AVX-512. "
                "Start this job on a CPU that has it, or choose float32"
            )
        self.name = f"openvino {precision}"
        settings = {
            "INFERENCE_PRECISION_HINT": {"float32": openvino.Type.f32, "bfloat16": openvino.Type.bf16}[precision],
            "NUM_STREAMS": min(batch_size, threads),
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,
        }
        compiled = _openvino_core().compile_model(openvino_network(model.config, model.weights), "CPU", settings)
        self._requests = [compiled.create_infer_request() for _ in range(batch_size)]

    def predict(self, image: np.ndarray, pom_logit: np.ndarray) -> np.ndarray:
        """Update the POM; see `Engine.predict`."""
        image, pom_logit = (np.require(array, np.float32, ["C", "W"]) for array in (image, pom_logit))
        answer = np.empty_like(pom_logit)
        requests = self._requests[: len(image)]
        for index, request in enumerate(requests):  # OpenVINO reads and writes these arrays in place
            request.set_input_tensor(0, _tensor(image[index]))
            request.set_input_tensor(1, _tensor(pom_logit[index]))
            request.set_output_tensor(_tensor(answer[index]))
            request.start_async()
        for request in requests:
            request.wait()
        return answer


class KernelEngine:
    """The network in float32 in our own C++, which needs a quarter of the multiplications; without TensorFlow."""

    def __init__(self, model: Model, precision: str, threads: int, batch_size: int) -> None:
        if precision != "float32":
            raise ConfigError(
                f"precision: found {precision}, the engine kernels has float32 alone. Choose it, or another engine"
            )
        if reason := obstacle(model.config.features):
            raise ConfigError(f"engine: found kernels, but {reason}. Choose openvino")
        self.name = "kernels float32"
        names = [f"{name}/{kind}" for name in conv_names(model.config) for kind in ("weights", "biases")]
        self._network = KernelNetwork([model.weights[name] for name in names], model.config.fov_size_zyx, threads)

    def predict(self, image: np.ndarray, pom_logit: np.ndarray) -> np.ndarray:
        """Update the POM; see `Engine.predict`."""
        return self._network.predict(image, pom_logit)


KINDS: dict[str, type[OpenVinoEngine] | type[KernelEngine]] = {"openvino": OpenVinoEngine, "kernels": KernelEngine}


def create_engine(model: Model, engine: str, precision: str, threads: int = 0, batch_size: int = 1) -> Engine:
    """Build an engine."""
    if engine not in KINDS:  # of a run that began with an earlier version
        raise ConfigError(f"engine: found {engine}, which segments no more. Choose {' or '.join(KINDS)}, or jax")
    threads = threads or threads_here()
    log.info("engine: %s %s, %d threads, batch size %d", engine, precision, threads, batch_size)
    return KINDS[engine](model, precision, threads, batch_size)


@functools.cache
def _openvino_core() -> openvino.Core:
    """Return the one core of this process, which stays until its end.

    OpenVINO gives the thread a stack for the handlers of signals, and takes it away with the core. When cores ended in
    another order than they began, that of a core that was gone was left, and the next signal killed the process.
    """
    import openvino

    return openvino.Core()


def _tensor(fov: np.ndarray) -> openvino.Tensor:
    """View one FOV as an OpenVINO tensor with batch and channel axes, without a copy."""
    import openvino

    return openvino.Tensor(fov[None, ..., None], shared_memory=True)
