"""Texts to try a model with: real secrets of the format, as token ids, as long as the longest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.tokenization.graphs.tokens import TokenAutomaton
from lightning_exposure.tokenization.spelling import Spelling

ROWS = 6
"""How many texts there are."""
MOST = 2
"""In so many of three rows something must be seen to be believed: once may be an expert that is chosen differently."""
PLACES = 32
"""How many places are looked at before a model counts as shifted."""


@dataclass(frozen=True)
class Probe:
    """Some texts of a format.

    Attributes:
        root: The tokens that all secrets begin with.
        paths: What follows, `(ROWS, tokens)`: as many tokens as a model reads of the longest secret, which are all but
            its last one.
        known: How many of these tokens some secret has for certain; beyond that lies what may be one, or be none.
        alphabet: Tokens that occur in texts of the format.
    """

    root: list[int]
    paths: NDArray[np.int64]
    known: int
    alphabet: NDArray[np.int64]

    def texts(self) -> NDArray[np.int64]:
        """Roots and paths `(ROWS, tokens)`."""
        roots = np.tile(np.array(self.root, dtype=np.int64), (len(self.paths), 1))
        return np.concatenate([roots, self.paths], axis=1)

    def shortened(self) -> Probe:
        """The same with only as many tokens as some secret has for certain."""
        return Probe(self.root, self.paths[:, : self.known], self.known, self.alphabet)


def probe_of(spelling: Spelling) -> Probe:
    """Random walks through the secrets, made as long as the longest secret by going on with their own tokens."""
    automaton = spelling.automaton
    draws = np.random.default_rng(0)
    walks = [_walk(automaton, draws) for _ in range(ROWS)]
    length = max(0, automaton.depth - 1)
    paths = np.array([(walk * (length // len(walk) + 1))[:length] for walk in walks], dtype=np.int64)
    # Where all places were found, the depth is that of a secret; elsewhere it is a limit.
    exact = automaton.paths is not None
    known = length if exact else min(length, max(map(len, walks)) - 1)
    first, _ = automaton.children(automaton.start)
    alphabet = np.unique(np.concatenate([*map(np.array, walks), spelling.root, first[:64]])).astype(np.int64)
    if len(alphabet) == 1:
        alphabet = np.array([0, 1]) if alphabet[0] < 2 else np.append([0], alphabet)
    return Probe(list(spelling.root), paths.reshape(ROWS, length), known, alphabet)


def _walk(automaton: TokenAutomaton, draws: np.random.Generator) -> list[int]:
    """The tokens of some secret, at random; where a secret is complete and others go on, it goes on."""
    place, walked = automaton.start, list[int]()
    while True:
        tokens, targets = automaton.children(place)
        if not len(tokens):
            return walked or [0]
        drawn = int(draws.integers(len(tokens)))
        walked.append(int(tokens[drawn]))
        place = int(targets[drawn])
