"""Random numbers by counter: the draw of token k of a turn depends on (seed, k) and on nothing else.

A generator with a state would make a sample depend on which other trajectories share its batch. Here each
number is a hash of the turn's seed and the token's index, so that batch composition, tool latency, eviction
and restarts cannot change a draw. The hash is SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom
Number Generators", OOPSLA 2014), started at a BLAKE2b hash of the seed.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_BITS = 48
"""Bits of a draw. Few enough that `draw * total` stays below `total` in float64 for a cumulative sum."""


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))


def stream_start(seed: int) -> int:
    """First state of the stream that `seed` (any integer) names: an unsigned 64-bit number."""
    return int.from_bytes(hashlib.blake2b(f"{seed:x}".encode(), digest_size=8).digest(), "little")


def uniform(starts: NDArray[np.uint64], index: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Draws in the open interval (0, 1), one for each pair of stream start and token index."""
    with np.errstate(over="ignore"):
        bits = _mix(starts + (index + np.uint64(1)) * _GOLDEN)
    return ((bits >> np.uint64(64 - _BITS)).astype(np.float64) + 0.5) / float(1 << _BITS)
