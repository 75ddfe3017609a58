"""Random numbers as a pure function of (seed, purpose, counters).

They are the same on every platform, for any number of workers, in any order. The generator is counter-based: a
random number is a hash of seed, purpose, and counters, so there is no state to save or to share. The purpose is a
string that names the use of the numbers ("mask", "split", …). The hash is the finalizer of SplitMix64 (Steele,
Lea, and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), applied once per counter.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The constants of SplitMix64: the increment, and the multipliers of its finalizer.
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

Bits = NDArray[np.uint64]


def _mix(x: Bits) -> Bits:
    """Apply SplitMix64's finalizer, in place to save passes over memory."""
    shifted = x >> np.uint64(30)
    x ^= shifted
    x *= _MIX_1
    np.right_shift(x, np.uint64(27), out=shifted)
    x ^= shifted
    x *= _MIX_2
    np.right_shift(x, np.uint64(31), out=shifted)
    x ^= shifted
    return x


def _mix_int(x: int) -> int:
    """Apply SplitMix64's finalizer to a Python integer."""
    x = (x ^ (x >> 30)) * int(_MIX_1) % 2**64
    x = (x ^ (x >> 27)) * int(_MIX_2) % 2**64
    return x ^ (x >> 31)


def random_bits(seed: int, purpose: str, *counters: ArrayLike) -> Bits:
    """Return 64 random bits for each combination of counters.

    Args:
        seed: The seed.
        purpose: The name of the stream; different purposes give independent numbers.
        counters: Non-negative integers or integer arrays that broadcast against each other.

    Returns:
        Random bits in the broadcast shape of the counters, uint64. Equal arguments always give equal bits.
    """
    name = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    state_int = int.from_bytes(name, "little")
    # Leading Python integers are hashed as Python integers, since arrays of one element are slow.
    num_scalars = 0
    while num_scalars < len(counters) and isinstance(scalar := counters[num_scalars], int):
        state_int = _mix_int((state_int + (scalar + 1) * int(_GOLDEN_GAMMA)) % 2**64)
        num_scalars += 1
    state = np.array([state_int], dtype=np.uint64)
    for counter in counters[num_scalars:]:
        state = extend_bits(state, np.atleast_1d(np.asarray(counter)))
    return state.reshape(np.broadcast_shapes(*(np.shape(counter) for counter in counters[num_scalars:])))


def extend_bits(state: Bits, counter: NDArray[Any]) -> Bits:
    """Return random bits with one more counter.

    `extend_bits(random_bits(s, p, a), b)` equals `random_bits(s, p, a, b)`, so that counters that many random
    numbers share are hashed only once. Both arrays broadcast.
    """
    step = counter.astype(np.uint64)
    step += np.uint64(1)
    step *= _GOLDEN_GAMMA
    if step.shape == state.shape:
        step += state
        return _mix(step)
    return _mix(np.asarray(step + state))


def uniform(seed: int, purpose: str, *counters: ArrayLike) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1) with 53 random bits, shaped as in `random_bits`."""
    return (random_bits(seed, purpose, *counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(seed: int, purpose: str, high: ArrayLike, *counters: ArrayLike) -> NDArray[np.int64]:
    """Return random integers in [0, high), with a bias below high / 2**53; `high` and the counters broadcast."""
    scaled = uniform(seed, purpose, *counters) * np.asarray(high)
    rounded: NDArray[np.int64] = np.floor(scaled).astype(np.int64)
    return rounded


def permutation(seed: int, purpose: str, size: int, *counters: int) -> NDArray[np.int64]:
    """Return a random permutation of range(size), int64."""
    return np.argsort(random_bits(seed, purpose, *counters, np.arange(size)), kind="stable")


def generator_seed(seed: int, purpose: str) -> int:
    """Return a seed in [0, 2**63) for a stateful generator, such as a torch.Generator."""
    return int(random_bits(seed, purpose, 0) >> np.uint64(1))
