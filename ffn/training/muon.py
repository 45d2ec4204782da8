"""Muon's steps: the momentum of a kernel, made orthogonal. The same lines serve TensorFlow, JAX and NumPy.

Source: Jordan et al. 2024, Muon: an optimizer for hidden layers in neural networks; the scale is that of Liu et al.
2025, Muon is scalable for LLM training, section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

MOMENTUM = 0.95
SCALE = 0.2  # root mean square of the entries of a step at rate 1, about that of Adam's: both take the same rates
ROUNDS, COEFFICIENTS = 5, (3.4445, -4.7750, 2.0315)


def is_matrix(shape: Sequence[int]) -> bool:
    """Whether a weight tensor is a matrix from several inputs to several outputs; others take Adam's steps."""
    return len(shape) > 1 and shape[-1] > 1


def orthogonal_step(matrix: Any, transpose: Callable[[Any], Any], norm: Callable[[Any], Any]) -> Any:
    """Return a step in which all directions of a matrix count alike.

    Parameters
    ----------
    matrix : float32 array of shape (N, F)
        Momentum of a kernel; N are its taps and inputs, F its outputs.
    transpose, norm : callable
        Of a matrix.

    Returns
    -------
    float32 array of shape (N, F)
        0.2 √max(N, F) times a matrix with the singular vectors of `matrix` and singular values of 0.7 to 1.2, where
        they are not tiny: five rounds of an odd polynomial bring them there, without computing them.
    """
    rows, columns = matrix.shape
    wide = transpose(matrix) if rows > columns else matrix
    wide = wide / (norm(wide) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ROUNDS):
        square = wide @ transpose(wide)
        wide = a * wide + (b * square + c * square @ square) @ wide
    step = SCALE * max(rows, columns) ** 0.5 * wide
    return transpose(step) if rows > columns else step
