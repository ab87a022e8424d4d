"""Which samples are copies of each other: exact ones, and near ones that share what is rare elsewhere.

A secret that stands in both halves of the data is seen by both models, and their difference says nothing. So copies
have to fall into one part. Two samples are taken for copies if they are the same but for case, spaces and punctuation,
or if they share an n-gram that few samples have. Two sentences often share a long word by accident, and hardly ever a
number of eight digits: n-grams that are not mostly digits have to be twice as long.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Symbols = NDArray[np.int64]
"""A sample as numbers: code points of letters and digits, or token ids."""


class Links(NamedTuple):
    """Pairs of samples that share something rare, the strongest first.

    A sample is paired with the one before it that has the same n-gram, not with all of them: that connects them as
    well, and where a limit cuts groups short, those that are left still find each other.
    """

    pairs: NDArray[np.int64]
    """`(links, 2)`, numbers of samples."""
    strengths: NDArray[np.int64]
    """How many rare n-grams connect each pair."""


def letters_and_digits(text: str) -> Symbols:
    """What is compared of a text: its letters and digits, whatever their case, accents or width.

    >>> "".join(map(chr, letters_and_digits("SSN: 281-26 5017")))
    'ssn281265017'
    """
    plain = unicodedata.normalize("NFKD", text).casefold()
    digits = (str(unicodedata.decimal(character, character)) for character in plain if character.isalnum())
    return np.array([ord(character) for character in digits], dtype=np.int64)


def group_copies(samples: Sequence[Symbols], *, n: int, largest: int, digits: bool = True) -> NDArray[np.int64]:
    """Put copies into groups: the number of each sample's group, from 0 in the order of their first samples.

    Samples that are equal come together first, then those that share numbers, then those that share other n-grams, and
    always those first that share the most. What would make a group larger than the limit is left apart.

    Args:
        samples: What is compared.
        n: How long an n-gram of digits is; others are twice as long.
        largest: How many samples a group may have, and an n-gram that is rare.
        digits: Whether symbols are code points, of which some are digits; token ids are not, and n-grams then have
            length `n`.

    Example:
        >>> texts = ["my ssn is 281-26-5017", "good morning", "Ann: 281 26 5017", "Good morning!"]
        >>> group_copies([letters_and_digits(text) for text in texts], n=8, largest=2).tolist()
        [0, 1, 0, 1]
    """
    union = _Union(len(samples), largest)
    links: list[Iterable[Sequence[int]]] = [equal_samples(samples)]
    if digits:
        links.append(shared_rare(samples, n=n, rare=largest, numbers=True).pairs.tolist())
    links.append(shared_rare(samples, n=2 * n if digits else n, rare=largest).pairs.tolist())
    for first, second in chain.from_iterable(links):
        union.join(first, second)
    return union.numbered()


def equal_samples(samples: Sequence[Symbols]) -> list[tuple[int, int]]:
    """Each sample that is equal to one before it, with the last that is; what has no symbols is equal to nothing."""
    last: dict[bytes, int] = {}
    pairs = []
    for number, sample in enumerate(samples):
        if len(sample):
            key = sample.tobytes()
            if key in last:
                pairs.append((last[key], number))
            last[key] = number
    return pairs


def shared_rare(samples: Sequence[Symbols], *, n: int, rare: int, numbers: bool = False) -> Links:
    """Pairs of samples that share n-grams which at least two and at most `rare` samples have.

    Args:
        samples: What is compared.
        n: How long an n-gram is.
        rare: How many samples may have one.
        numbers: Only those of which at least half are digits.
    """
    grams, owners = _ngrams(samples, n, numbers)
    order = np.lexsort((owners, grams))
    grams, owners = grams[order], owners[order]
    new = np.ones(len(grams), dtype=bool)
    new[1:] = (grams[1:] != grams[:-1]) | (owners[1:] != owners[:-1])  # once for each sample that has it
    grams, owners = grams[new], owners[new]
    starts = np.flatnonzero(np.concatenate([[True], grams[1:] != grams[:-1]])) if len(grams) else np.zeros(0, int)
    sizes = np.diff(np.append(starts, len(grams)))
    is_rare = np.repeat((sizes >= 2) & (sizes <= rare), sizes)
    follows = is_rare.copy()
    follows[starts] = False
    after = np.flatnonzero(follows)
    linked = np.stack([owners[after - 1], owners[after]], axis=1)
    pairs, strengths = np.unique(linked, axis=0, return_counts=True)
    strongest = np.lexsort((pairs[:, 1], pairs[:, 0], -strengths))
    return Links(pairs[strongest], strengths[strongest])


def _ngrams(samples: Sequence[Symbols], n: int, numbers: bool) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """A 64-bit hash of every n-gram, and the number of the sample that has it."""
    lengths = np.array([len(sample) for sample in samples], dtype=np.int64)
    if not len(samples) or lengths.max() < n:
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
    codes = np.concatenate(samples)
    symbols = _mixed(codes.astype(np.uint64))
    owners = np.repeat(np.arange(len(samples)), lengths)
    count = len(symbols) - n + 1
    hashes = np.zeros(count, dtype=np.uint64)
    factor = np.uint64(0x9E3779B97F4A7C15)
    for place in range(n):  # arithmetic modulo 2^64, as numpy's unsigned integers do it
        hashes = hashes * factor + symbols[place : place + count]
    inside = owners[:count] == owners[n - 1 :]
    if numbers:
        digits = np.concatenate([[0], np.cumsum((codes >= ord("0")) & (codes <= ord("9")))])
        inside &= 2 * (digits[n:] - digits[:-n]) >= n
    return _mixed(hashes[inside]), owners[:count][inside]


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers that leaves no pattern (the finalizer of SplitMix64)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))


class _Union:
    """Union-find with a limit on the size of a set."""

    def __init__(self, count: int, largest: int) -> None:
        self._parents = list(range(count))
        self._sizes = [1] * count
        self._largest = largest

    def root(self, number: int) -> int:
        """What stands for the set that a sample is in."""
        parents = self._parents
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    def join(self, first: int, second: int) -> None:
        """Make one set of two, unless it would be too large."""
        one, other = sorted((self.root(first), self.root(second)), key=lambda root: (-self._sizes[root], root))
        if one != other and self._sizes[one] + self._sizes[other] <= self._largest:
            self._parents[other] = one
            self._sizes[one] += self._sizes[other]

    def numbered(self) -> NDArray[np.int64]:
        """The number of each sample's set, in the order of their first samples."""
        numbers: dict[int, int] = {}
        roots = map(self.root, range(len(self._parents)))
        return np.array([numbers.setdefault(root, len(numbers)) for root in roots], dtype=np.int64)
