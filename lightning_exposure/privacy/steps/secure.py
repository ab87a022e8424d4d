r"""Randomness from the operating system's cryptographic generator, and Gaussian noise made of it.

PyTorch's generators are fast, and good for statistics. They are not made to withstand somebody who wants to tell the
next number from those before: their state is a few thousand bits at most, and numbers that were seen tell it. What
comes from here cannot be told.

**The method.** A word of 64 random bits gives a uniform number, two of these give two normal ones (Box and Muller), all
in double precision. The radius is taken from 63 bits, so that the tails reach as far as 9.4 standard deviations.

**The digits.** Normal numbers in floating point are not all equally likely: some values never come out, and which ones
do differs with what the noise is added to. Whoever sees all digits of a noisy gradient could tell some sums from others
that way. So each number is the half of the sum of four independent ones, as in Opacus' secure mode: what comes out can
then be reached in so many ways that nobody can count them. The four are of four different pairs, which are eight words:
the two of one pair share theirs, and would leave fewer ways. The sum with the gradient is made in double precision too,
and rounded once, when it is done.

Randomness is an argument: every function takes what reads bytes, `os.urandom` unless a test gives others.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Read = Callable[[int], bytes]
"""Gives so many random bytes."""

_SUMMED = 4
"""Of how many independent normal numbers each is made."""
_CHUNK = 2**16
"""How many normal numbers are made at once."""


def uniform(count: int, read: Read = os.urandom) -> NDArray[np.float64]:
    """Numbers from 0 on and below 1, each with 53 random bits.

    Args:
        count: How many.
        read: Gives random bytes.

    Example:
        >>> uniform(2, read=lambda count: bytes(count)).tolist()
        [0.0, 0.0]
    """
    return _words(count, read).bitwise_and(2**53 - 1).double().mul_(2.0**-53).numpy()


def gaussian(count: int, read: Read = os.urandom) -> NDArray[np.float64]:
    """Standard normal numbers, by the method of Box and Muller.

    Args:
        count: How many.
        read: Gives random bytes: 8 for each, and 8 more if their number is odd.

    Example:
        >>> gaussian(3).shape
        (3,)
    """
    half = -(-count // 2)
    words = _words(2 * half, read)
    # Whole numbers of 63 bits, and never 0: there is always a logarithm, and all digits of the small ones count.
    radius = words[:half].bitwise_and(2**63 - 1).double().add_(0.5).mul_(2.0**-63).log_().mul_(-2).sqrt_()
    angle = words[half:].bitwise_right_shift(11).double().mul_(2 * math.pi * 2.0**-53)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count].numpy()


def hardened_gaussian(count: int, read: Read = os.urandom) -> NDArray[np.float64]:
    """Standard normal numbers, each made of four, so that no digits tell what they were added to.

    Args:
        count: How many.
        read: Gives random bytes: 32 for each, and 32 more if their number is odd.
    """
    found = np.empty(count)
    for begin in range(0, count, _CHUNK):
        some = min(_CHUNK, count - begin)
        half = -(-some // 2)
        # The first number of every pair is in the first half, the second in the other: each is summed by itself.
        summed = gaussian(_SUMMED * 2 * half, read).reshape(2, _SUMMED, half).sum(1)
        found[begin : begin + some] = summed.ravel()[:some]
    found /= math.sqrt(_SUMMED)
    return found


def _words(count: int, read: Read) -> Tensor:
    # A copy, because PyTorch wants to be able to write to it. It is quicker at sines than NumPy.
    return torch.frombuffer(bytearray(read(8 * count)), dtype=torch.int64)


class SecureGenerator:
    """Stands where a `torch.Generator` does, and has nothing that could be told or repeated.

    Args:
        read: Gives random bytes.

    Attributes:
        read: As given.

    Example:
        >>> generator = SecureGenerator()
        >>> generator.noisy(torch.zeros(2, 3), deviation=1.0).shape
        torch.Size([2, 3])
    """

    def __init__(self, read: Read = os.urandom) -> None:
        self.read = read
        self._given = 0
        self._kept: deque[NDArray[np.float64]] | None = None
        self._room = 0

    @property
    def device(self) -> torch.device:
        """Where its numbers are made."""
        return torch.device("cpu")

    def initial_seed(self) -> int:
        """A seed for something else, such as the workers of a loader; another one each time."""
        return int.from_bytes(self.read(7), "little")

    def get_state(self) -> Tensor:
        """How many numbers were given: enough to see that some were, and nothing that tells the next."""
        return torch.tensor([self._given])

    def uniform(self, count: int) -> Tensor:
        """Numbers from 0 on and below 1, in double precision."""
        self._given += count
        return torch.from_numpy(uniform(count, self.read))

    def normal(self, count: int) -> NDArray[np.float64]:
        """Standard normal numbers."""
        self._given += count
        found = hardened_gaussian(count, self.read)
        if self._kept is not None and count <= self._room:
            self._kept.append(found)
            self._room -= count
        else:
            self._room = 0  # what follows is not kept either: the order counts
        return found

    def noisy(self, values: Tensor, deviation: float) -> Tensor:
        """A tensor with noise: the sum is made in double precision, and rounded once."""
        if not deviation:
            return values.clone()
        noise = torch.from_numpy(deviation * self.normal(values.numel())).view(values.shape)
        wide = values.cpu() if values.device.type == "mps" else values  # which has no double precision
        return (wide.double() + noise.to(wide.device)).to(values)

    def keep(self, room: int) -> None:
        """Keep the normal numbers that are given from now on, for `kept`: so many, but not a part of a request."""
        self._kept, self._room = deque(), room

    def kept(self) -> deque[NDArray[np.float64]]:
        """What was kept, request by request; from now on nothing is."""
        found, self._kept = self._kept or deque(), None
        return found


AnyGenerator = torch.Generator | SecureGenerator


def coins(count: int, generator: AnyGenerator) -> Tensor:
    """Numbers from 0 on and below 1, in double precision, from either kind of generator."""
    if isinstance(generator, SecureGenerator):
        return generator.uniform(count)
    return torch.rand(count, generator=generator, dtype=torch.float64)


def permutation(count: int, generator: AnyGenerator) -> Tensor:
    """The numbers from 0 on in a random order, from either kind of generator."""
    if isinstance(generator, SecureGenerator):
        return generator.uniform(count).argsort()
    return torch.randperm(count, generator=generator)


def standard_normal(generator: AnyGenerator | None) -> float:
    """A standard normal number from either kind of generator, or from PyTorch's global one."""
    if isinstance(generator, SecureGenerator):
        return float(generator.normal(1)[0])
    device = torch.device("cpu") if generator is None else generator.device
    dtype = torch.float32 if device.type == "mps" else torch.float64  # which MPS does not have
    return float(torch.randn(1, generator=generator, device=device, dtype=dtype))
