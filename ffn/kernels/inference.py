"""The network in float32 for inference, by Winograd's convolutions in C++; see README.md in this folder."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ffn.kernels import MAX_FEATURES, library_of, not_built, vector_lanes

_POINTER, _INT64 = ctypes.c_void_p, ctypes.c_int64


def library_path() -> Path:
    """Return where `make setup` puts the compiled library."""
    return library_of("inference")


def obstacle(features: int) -> str | None:
    """Return why this machine cannot compute a network, or None."""
    if features > MAX_FEATURES:
        return f"the network has {features} features, and they compute up to {MAX_FEATURES}"
    if reason := not_built(library_path()):
        return reason
    try:
        _library(library_path())
    except (OSError, AttributeError) as error:  # built for another C++ library, or by another version
        return f"{library_path()} does not load ({error})"
    return None


class KernelNetwork:
    """The flood-filling network in its own memory.

    `weights` are weights and biases of all convolutions in turn, ordered as by `ffn.model.network.conv_names`. Threads
    do not change the result. `lanes` of 8 and 16 (default: `vector_lanes`) need such vectors. A `MemoryError`,
    here or in `predict`, says that the system refuses a thread or memory.
    """

    def __init__(
        self, weights: Sequence[np.ndarray], fov_size_zyx: tuple[int, int, int], threads: int, lanes: int | None = None
    ) -> None:
        arrays = [np.ascontiguousarray(each, np.float32) for each in weights]
        pointers = (_POINTER * len(arrays))(*(each.ctypes.data for each in arrays))
        self._library = _library(library_path())
        self._network = self._library.ffn_network_create(
            lanes or vector_lanes(), *fov_size_zyx, arrays[1].size, pointers, len(arrays), threads
        )
        if not self._network:
            raise MemoryError("the network's threads and buffers")
        weakref.finalize(self, self._library.ffn_network_free, self._network)

    def predict(self, image: np.ndarray, pom_logit: np.ndarray) -> np.ndarray:
        """Return the updated POM of float32 FOVs (B, Z, Y, X)."""
        image, pom_logit = (np.ascontiguousarray(array, np.float32) for array in (image, pom_logit))
        updated = np.empty_like(pom_logit)
        arrays = (each.ctypes.data for each in (image, pom_logit, updated))
        if self._library.ffn_network_predict(self._network, len(image), *arrays):
            raise MemoryError("the network's buffers")
        return updated


@functools.cache
def _library(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    sizes = [ctypes.c_int, _INT64, _INT64, _INT64, _INT64]
    library.ffn_network_create.argtypes = [*sizes, ctypes.POINTER(_POINTER), _INT64, ctypes.c_int]
    library.ffn_network_create.restype = _POINTER
    library.ffn_network_predict.argtypes = [_POINTER, _INT64, _POINTER, _POINTER, _POINTER]
    library.ffn_network_free.argtypes = [_POINTER]
    library.ffn_network_free.restype = None
    return library
