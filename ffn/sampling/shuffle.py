"""Permutations that are computed, not stored: any part of a shuffled sequence, in any process."""

from __future__ import annotations

import numpy as np

NUM_ROUNDS = 10
_TWEAK = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ / golden ratio: spreads consecutive tweaks
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def permutation_keys(rng: np.random.Generator) -> np.ndarray:
    """Draw the uint64 keys that select one permutation."""
    return rng.integers(0, 2**64, size=NUM_ROUNDS, dtype=np.uint64)


def permute(indices: np.ndarray, size: int, keys: np.ndarray, tweak: np.ndarray | int = 0) -> np.ndarray:
    """Map `indices` by a pseudo-random permutation of 0 … `size` - 1.

    Parameters
    ----------
    indices : int ndarray of shape (N,)
        Each in 0 … `size` - 1.
    size : int
        Number of things that are permuted.
    keys : uint64 ndarray
        From `permutation_keys`.
    tweak : int ndarray of shape (N,) or int
        Selects another permutation for each value.

    Returns
    -------
    int64 ndarray of shape (N,)
        Distinct for distinct indices of equal tweak.

    Notes
    -----
    A Feistel network over the smallest power of two that holds `size`, applied again to what falls outside
    until it is inside (cycle walking; Black & Rogaway 2002, Ciphers with arbitrary finite domains). The
    mixing function is the finaliser of SplitMix64 (Steele et al. 2014).
    """
    bits = max(2, (size - 1).bit_length())
    out = indices.astype(np.uint64)
    tweaks = np.broadcast_to(np.asarray(tweak, dtype=np.uint64), out.shape) * _TWEAK
    outside = np.arange(len(out))
    while len(outside):
        out[outside] = _feistel(out[outside], bits, keys, tweaks[outside])
        outside = outside[out[outside] >= size]
    return out.astype(np.int64)


def _feistel(values: np.ndarray, bits: int, keys: np.ndarray, tweaks: np.ndarray) -> np.ndarray:
    """Permute 0 … 2**bits - 1: each half is changed in turn by a function of the other."""
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << bits // 2) - 1)
    high_mask = np.uint64((1 << bits - bits // 2) - 1)
    high, low = values >> low_bits, values & low_mask
    for number, key in enumerate(keys):
        if number % 2:
            high = high ^ (mix(low + key + tweaks) & high_mask)
        else:
            low = low ^ (mix(high + key + tweaks) & low_mask)
    return high << low_bits | low


def mix(values: np.ndarray) -> np.ndarray:
    """Hash uint64 values: bits that look independent of the input's (SplitMix64's finaliser)."""
    values = (values ^ values >> np.uint64(30)) * _MULTIPLIERS[0]
    values = (values ^ values >> np.uint64(27)) * _MULTIPLIERS[1]
    return values ^ values >> np.uint64(31)
