"""The scorer "ngram": counts of characters, and of words of lists, behind one another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from lightning_exposure._checks import whole_number
from lightning_exposure.synthetic.text._ngrams import NgramModel
from lightning_exposure.synthetic.text.scorers._registered import SCORERS, AskedSecret, Floats

_LETTERS = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class NgramScorer:
    """By how many bits a secret is cheaper than by the frequencies of its characters alone.

    Canaries of one format differ in what they cost anyone: some digits are more frequent than others. That
    difference is noise, so what counted characters say without those before them is taken off.

    Words that several of the secrets have, such as those of a list of first names, count as one character: which word
    stands behind which is what there is to see.

    Args:
        order: How long the windows are that are counted.

    Example:
        >>> texts, asked = ["pin 1234", "pin 5634"], [AskedSecret("pin 1234", 4), AskedSecret("pin 4321", 4)]
        >>> NgramScorer()(texts, asked, seed=0).round(1).tolist()
        [11.3, -3.5]
    """

    order: int = 5

    def __post_init__(self) -> None:
        """Refuse what is no order."""
        whole_number("order", self.order, at_least=2)

    def __call__(self, texts: Sequence[str], asked: Sequence[AskedSecret], *, seed: int = 0) -> Floats:
        """The scores; no random number is needed."""
        words = shared_words(asked)
        behind = [split(secret.text[secret.start :], words) for secret in asked]
        whole = [[*secret.text[: secret.start], *rest] for secret, rest in zip(asked, behind, strict=True)]
        model = NgramModel([split(text, words) for text in texts], whole, order=self.order)
        bits = model.bits_by_order(whole)
        costs = [each[:, secret.start :].sum(axis=1) for each, secret in zip(bits, asked, strict=True)]
        return np.array([each[0] - each[-1] for each in costs])


def shared_words(asked: Sequence[AskedSecret]) -> frozenset[str]:
    """The words that at least two secrets have.

    >>> sorted(shared_words([AskedSecret("ann: tea, pqr", 5), AskedSecret("ann: tea, xyz", 5)]))
    ['tea']
    """
    found = Counter(word for secret in asked for word in set(_LETTERS.findall(secret.text, secret.start)))
    return frozenset(word for word, count in found.items() if count > 1 and len(word) > 1)


def split(text: str, words: Collection[str]) -> Sequence[str]:
    """A text as some words, and characters.

    >>> split("tea, pqr", {"tea"})
    ['tea', ',', ' ', 'p', 'q', 'r']
    """
    if not words:
        return text
    pieces: list[str] = []
    end = 0
    for found in _LETTERS.finditer(text):
        pieces += text[end : found.start()]
        pieces += [found[0]] if found[0] in words else found[0]
        end = found.end()
    return [*pieces, *text[end:]]


SCORERS.register("ngram", priority=1)(NgramScorer())
