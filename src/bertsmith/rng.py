"""Random numbers as a pure function of (seed, purpose, counters): the same on every platform, for any number
of workers, in any order.

The generator is counter-based: a draw is a hash of its name, so there is no state to save, to share or to
forget. The mixer is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014), applied once for each counter.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser, in place: one pass over memory less for each of its steps."""
    shifted = x >> np.uint64(30)
    x ^= shifted
    x *= _MIX_1
    np.right_shift(x, np.uint64(27), out=shifted)
    x ^= shifted
    x *= _MIX_2
    np.right_shift(x, np.uint64(31), out=shifted)
    x ^= shifted
    return x


def _mixed_number(x: int) -> int:
    x = (x ^ (x >> 30)) * int(_MIX_1) % 2**64
    x = (x ^ (x >> 27)) * int(_MIX_2) % 2**64
    return x ^ (x >> 31)


def bits(seed: int, purpose: str, *counters: ArrayLike) -> NDArray[np.uint64]:
    """64 random bits for each combination of counters.

    `counters` are non-negative integers or integer arrays that broadcast against each other; the result has
    their common shape. Equal arguments give equal bits, always.
    """
    name = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    first = int.from_bytes(name, "little")
    leading = 0  # plain numbers in front, as an epoch's, are hashed as such: arrays of one are slow
    while leading < len(counters) and isinstance(number := counters[leading], int):
        first = _mixed_number((first + (number + 1) * int(_GOLDEN)) % 2**64)
        leading += 1
    state = np.array([first], dtype=np.uint64)
    for counter in counters[leading:]:
        state = further(state, np.atleast_1d(np.asarray(counter)))
    return state.reshape(np.broadcast_shapes(*(np.shape(counter) for counter in counters[leading:])))


def further(drawn: NDArray[np.uint64], counter: NDArray[Any]) -> NDArray[np.uint64]:
    """Bits with one counter more: `further(bits(s, p, a), b)` is `bits(s, p, a, b)`.

    For many draws that share their first counters, which are then hashed once. Both arrays broadcast.
    """
    step = counter.astype(np.uint64)
    step += np.uint64(1)
    step *= _GOLDEN
    if step.shape == drawn.shape:
        step += drawn
        return _mix(step)
    return _mix(np.asarray(step + drawn))


def uniform(seed: int, purpose: str, *counters: ArrayLike) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) with 53 random bits, shaped as in `bits`."""
    return (bits(seed, purpose, *counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(seed: int, purpose: str, high: ArrayLike, *counters: ArrayLike) -> NDArray[np.int64]:
    """Integers in [0, high); `high` broadcasts with the counters. The bias is below high / 2**53."""
    drawn: NDArray[np.int64] = np.floor(uniform(seed, purpose, *counters) * np.asarray(high)).astype(np.int64)
    return drawn


def permutation(seed: int, purpose: str, size: int, *counters: int) -> NDArray[np.int64]:
    """A permutation of range(size): the order of its members' random bits."""
    return np.argsort(bits(seed, purpose, *counters, np.arange(size)), kind="stable")


def generator_seed(seed: int, purpose: str) -> int:
    """A seed for a generator that must have state of its own (torch's dropout), in [0, 2**63)."""
    return int(bits(seed, purpose, 0) >> np.uint64(1))
