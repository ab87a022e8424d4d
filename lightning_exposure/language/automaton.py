"""Format x tokenizer: which tokens may follow at each place of a secret.

A place is a state of the format's character automaton, reached at the end of a token. With one token per character
that is the position in the pattern; with subwords one token may fill three digits, or a digit and the dash after it,
and the set of tokens that fit differs from place to place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class CharacterAutomaton(Protocol):
    """What a token automaton is made from: which characters may follow. A format's `Acceptor` is one."""

    def edges(self, state: int, /) -> Mapping[str, int]:
        """The characters that may follow, and the state after each."""
        ...

    def accepting(self, state: int, /) -> bool:
        """Whether a text may end here."""
        ...


class _Trie:
    """The texts of a vocabulary by their characters, so that tokens with one beginning are checked together."""

    __slots__ = ("below", "tokens")

    def __init__(self) -> None:
        self.below: dict[str, _Trie] = {}
        self.tokens: list[int] = []

    def add(self, text: str, token: int) -> None:
        node = self
        for character in text:
            node = node.below.setdefault(character, _Trie())
        node.tokens.append(token)


class TokenAutomaton:
    """Places and the tokens that lead from one to the next, numbered from 0 (the start).

    Only places from which a complete secret can be reached are kept.

    Args:
        acceptor: The format's automaton over characters.
        start: The state of it where the tree begins.
        pieces: The text that each token adds, in the order of token ids; None or "" for a token that adds none.

    Attributes:
        tokens: For each place, the token ids that may follow, in increasing order.
        targets: For each place, where each of those tokens leads.
        accepting: For each place, whether a secret is complete there.
        open: For each place, whether tokens may follow.
        depth: The largest number of tokens from the start to a complete secret.
        shortest: The smallest number of tokens from the start to a complete secret.
        one_path_per_text: Whether no text can be spelt in two ways, so that every path is the canonical one.
    """

    def __init__(self, acceptor: CharacterAutomaton, start: int, pieces: Sequence[str | None]) -> None:
        trie = _Trie()
        for token, piece in enumerate(pieces):
            if piece:
                trie.add(piece, token)
        raw, self.one_path_per_text = _explore(acceptor, start, trie)
        kept = _complete(acceptor, raw)
        number = {state: i for i, state in enumerate(s for s in raw if s in kept)}
        edges = [
            sorted((token, number[target]) for token, target in raw[state] if target in number) for state in number
        ]
        self.tokens = [np.array([token for token, _ in row], dtype=np.int64) for row in edges]
        self.targets = [np.array([target for _, target in row], dtype=np.int64) for row in edges]
        self.accepting: NDArray[np.bool_] = np.array([acceptor.accepting(state) for state in number], dtype=bool)
        self.open: NDArray[np.bool_] = np.array([len(row) > 0 for row in edges], dtype=bool)
        self.depth, self.shortest = _path_lengths(self.targets, self.accepting)

    def __len__(self) -> int:
        """The number of places; 0 if no secret can be spelt at all."""
        return len(self.tokens)

    def walk(self, paths: NDArray[np.int32]) -> NDArray[np.int64]:
        """The place that each path of tokens leads to from the start; -1 if it does not fit.

        Args:
            paths: One row each, shorter paths filled up with -1.
        """
        places = np.zeros(len(paths), dtype=np.int64)
        if not len(self):
            return places - 1
        stride = max(int(tokens.max(initial=0)) for tokens in self.tokens) + 1
        keys = np.concatenate([place * stride + tokens for place, tokens in enumerate(self.tokens)])
        targets = np.concatenate(self.targets)
        for column in paths.T:
            moving = np.flatnonzero((column >= 0) & (places >= 0))
            wanted = places[moving] * stride + column[moving]
            at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            fits = (keys[at] == wanted) & (column[moving] < stride)
            places[moving] = np.where(fits, targets[at], -1)
        return places


def _explore(acceptor: CharacterAutomaton, start: int, trie: _Trie) -> tuple[dict[int, list[tuple[int, int]]], bool]:
    """All states at token ends, breadth first, with (token, target); and whether pieces never begin one another."""
    edges: dict[int, list[tuple[int, int]]] = {}
    prefix_free = True
    queue = [start]
    while queue:
        following: list[int] = []
        for state in queue:
            if state in edges:
                continue
            edges[state], separate = _tokens_from(acceptor, state, trie)
            prefix_free = prefix_free and separate
            following.extend(target for _, target in edges[state])
        queue = following
    return edges, prefix_free


def _tokens_from(acceptor: CharacterAutomaton, state: int, trie: _Trie) -> tuple[list[tuple[int, int]], bool]:
    """The tokens whose text fits from a state; and whether none of those texts begins with another."""
    found: list[tuple[int, int]] = []
    separate = True
    stack = [(state, trie, False)]
    while stack:
        at, node, inside = stack.pop()
        found.extend((token, at) for token in node.tokens)
        separate = separate and len(node.tokens) + inside <= 1 if node.tokens else separate
        inside = inside or bool(node.tokens)
        following = acceptor.edges(at)
        # The smaller of the two decides which characters are tried.
        for character in node.below if len(node.below) < len(following) else following:
            if character in following and character in node.below:
                stack.append((following[character], node.below[character], inside))
    return found, separate


def _complete(acceptor: CharacterAutomaton, edges: dict[int, list[tuple[int, int]]]) -> set[int]:
    """The states from which tokens lead to a complete secret."""
    parents: dict[int, list[int]] = {state: [] for state in edges}
    for state, row in edges.items():
        for _, target in row:
            parents[target].append(state)
    kept = {state for state in edges if acceptor.accepting(state)}
    queue = list(kept)
    while queue:
        for parent in parents[queue.pop()]:
            if parent not in kept:
                kept.add(parent)
                queue.append(parent)
    return kept


def _path_lengths(targets: list[NDArray[np.int64]], accepting: NDArray[np.bool_]) -> tuple[int, int]:
    """The longest and the shortest way from the first place to a complete secret (a finite format has no cycles)."""
    longest, shortest = 0, None
    level: set[int] = {0} if targets else set()
    while level:
        level = {int(target) for place in level for target in targets[place]}
        longest += bool(level)
        if shortest is None and any(accepting[place] for place in level):
            shortest = longest
    return longest, shortest or 0
