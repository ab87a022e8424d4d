"""Keyed permutations of the numbers below any size: a Feistel network whose rounds are HMACs, with cycle walking.

Nobody without the key can tell which number became which; and since they are permutations, two numbers never become
the same one, as two hashes sooner or later would.
"""

from __future__ import annotations

import hmac

_ROUNDS = 10


def subkey(key: bytes, *purpose: str) -> bytes:
    """A key for one purpose, from which neither the key nor those for other purposes can be told."""
    return hmac.digest(key, b"\0".join(part.encode("utf-8", "surrogatepass") for part in purpose), "sha256")


def keyed_number(key: bytes, text: str, size: int) -> int:
    """A number below a size that depends on a key and a text; all are equally likely."""
    wide = size.bit_length() + 64  # so much wider that the remainder favours none
    return int.from_bytes(_stream(key, text.encode("utf-8", "surrogatepass"), (wide + 7) // 8), "big") % size


class KeyedPermutation:
    """A bijection of the numbers below `size`, chosen by a key.

    Args:
        key: The key; use another one for every set of numbers.
        size: How many numbers there are.

    Example:
        >>> permutation = KeyedPermutation(b"only for this example", 10)
        >>> sorted(permutation(number) for number in range(10)) == list(range(10))
        True
        >>> permutation.inverse(permutation(7))
        7
    """

    def __init__(self, key: bytes, size: int) -> None:
        self._key = key
        self.size = size
        # Two halves of so many bits hold every number, and at most four times as many as there are.
        self._bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._bits) - 1

    def __call__(self, number: int) -> int:
        """What a number becomes. What falls outside is permuted again until it falls inside, which keeps it one."""
        number = self._once(number)
        while number >= self.size:
            number = self._once(number)
        return number

    def inverse(self, number: int) -> int:
        """What became this number."""
        number = self._back(number)
        while number >= self.size:
            number = self._back(number)
        return number

    def displaced(self, number: int) -> int:
        """What a number becomes in a permutation that leaves none of them where it is (of at least two).

        All numbers are on one cycle, in an order that only the key tells; each becomes the next.
        """
        return self.inverse((self(number) + 1) % self.size)

    def _once(self, number: int) -> int:
        left, right = number >> self._bits, number & self._mask
        for place in range(_ROUNDS):
            left, right = right, left ^ self._round(place, right)
        return left << self._bits | right

    def _back(self, number: int) -> int:
        left, right = number >> self._bits, number & self._mask
        for place in reversed(range(_ROUNDS)):
            left, right = right ^ self._round(place, left), left
        return left << self._bits | right

    def _round(self, place: int, half: int) -> int:
        wide = (self._bits + 7) // 8
        return int.from_bytes(_stream(self._key, bytes([place]) + half.to_bytes(wide, "big"), wide), "big") & self._mask


def _stream(key: bytes, message: bytes, count: int) -> bytes:
    """As many bytes as are asked for that depend on a key and a message."""
    blocks = [hmac.digest(key, block.to_bytes(4, "big") + message, "sha256") for block in range(-(-count // 32))]
    return b"".join(blocks)[:count]
