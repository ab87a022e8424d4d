"""The canonical paths of a BPE model: which token may follow which.

When may the token b follow the token a within a pre-token? Let the pair be spelled by merging: left of the boundary a
is built, right of it b, and nothing else happens unless at some time a merge of a's last symbol and b's first one is
the best there is. The last symbol of a grows, from a character to a itself: each symbol on this *right spine* of a
lives from the merge that makes it to the merge that takes it. The same holds for the *left spine* of b. Symbols x and
y of the two spines are merged over the boundary if their merge comes after those that make them and before those that
end them (of equal ones the leftmost is done first).

And if a path is not canonical, then two neighbours in it are not: the first merge over any boundary happens while all
others were within tokens, so it would happen as well in the text of the two tokens beside that boundary alone. So with
the last token as its past this rule leaves exactly the canonical paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.tokenization._vocabulary import FittingTokens
from lightning_exposure.tokenization.canonical.rule import FRESH, Integers

_NEVER = 2**31
_ENDS_PRETOKEN = -2
"""The past after a token that no merges lead to: it is a whole pre-token, and nothing goes on inside."""


class Symbol(NamedTuple):
    """A symbol at an edge of a token while it is built."""

    token: int
    begins: int
    """The rank of the merge that makes it; -1 for a character."""
    ends: int
    """The rank of the merge that takes it."""


class Spines(NamedTuple):
    """The first and the last symbols of a token while it is built, from characters to the token itself."""

    left: list[Symbol]
    right: list[Symbol]


class MergeTable:
    """The merges of a BPE model.

    Args:
        model: The model's part of a `tokenizer.json`.
        atoms: Tokens that stand for single bytes: nothing is merged with them.
    """

    def __init__(self, model: Mapping[str, Any], atoms: Iterable[int] = ()) -> None:
        self.vocabulary: Mapping[str, int] = model["vocab"]
        self.whole_words_first = bool(model.get("ignore_merges"))
        self._strings = {token: text for text, token in self.vocabulary.items()}
        self._merges: dict[tuple[int, int], tuple[int, int]] = {}
        self._right_of: dict[int, list[tuple[int, int]]] = {}
        self._partners: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self._spines: dict[int, Spines | None] = {
            atom: Spines([Symbol(atom, -1, _NEVER)], [Symbol(atom, -1, _NEVER)]) for atom in atoms
        }
        for rank, pair in enumerate(model["merges"]):
            left, right = pair.split(" ") if isinstance(pair, str) else pair
            ids = self.vocabulary[left], self.vocabulary[right]
            self._merges[ids] = rank, self.vocabulary[left + right]
            self._right_of.setdefault(ids[0], []).append((ids[1], rank))

    def partners(self, left: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The tokens that a token is merged with when they stand to its right, and the ranks of the merges."""
        if left not in self._partners:
            found = np.array(self._right_of.get(left, []), dtype=np.int64).reshape(-1, 2)
            self._partners[left] = found[:, 0], found[:, 1]
        return self._partners[left]

    def spines(self, token: int) -> Spines | None:
        """How a token is built from its own text; None if merging that text gives something else."""
        if token not in self._spines:
            self._spines[token] = self._build(token)
        return self._spines[token]

    def _build(self, token: int) -> Spines | None:
        text = self._strings.get(token, "")
        if not all(character in self.vocabulary for character in text):
            return None
        symbols = [self.vocabulary[character] for character in text]
        left: list[Symbol] = []
        right: list[Symbol] = []
        first = last = now = -1
        while len(symbols) > 1:
            pairs = list(pairwise(symbols))
            possible = [(self._merges[pair][0], at) for at, pair in enumerate(pairs) if pair in self._merges]
            if not possible:
                return None
            rank, at = min(possible)
            merged = self._merges[pairs[at]][1]
            # A merge of a lower rank than one before it became possible only then, and is done at once.
            now = max(now, rank)
            # (A symbol that ends when it begins is left out: nothing certain can be said of it.)
            if at == 0:
                left += [Symbol(symbols[0], first, now)] if first < now else []
                first = now
            if at == len(symbols) - 2:
                right += [Symbol(symbols[-1], last, now)] if last < now else []
                last = now
            symbols[at : at + 2] = [merged]
        if symbols != [token]:
            return None
        left.append(Symbol(token, first, _NEVER))
        right.append(Symbol(token, last, _NEVER))
        return Spines(left, right)


class MergeRule:
    """The paths that a BPE model's merges lead to.

    Args:
        fitting: The tokens that fit in the texts.
        table: The merges.
    """

    def __init__(self, fitting: FittingTokens, table: MergeTable) -> None:
        self._fitting = fitting
        self._table = table
        tokens = list(fitting.vocabulary.texts)
        built = [table.spines(token) for token in tokens]
        self._rows = np.full(max(tokens, default=0) + 1, -1, dtype=np.int64)
        self._rows[tokens] = np.arange(len(tokens))
        self._is_built = np.array([spines is not None for spines in built], dtype=bool)
        width = max((len(spines.left) for spines in built if spines), default=1)
        # The left spines of all tokens, filled up with symbols that nothing is merged with.
        self._left = np.full((3, len(tokens), width), -1, dtype=np.int64)
        for row, spines in enumerate(built):
            if spines is not None:
                self._left[:, row, : len(spines.left)] = np.array(spines.left).T
        self._first_merges: dict[tuple[int, int, int], NDArray[np.int64]] = {}
        largest = max(table.vocabulary.values(), default=0) + 1
        self._ranks = np.full(largest + 1, _NEVER, dtype=np.int64)  # the last one is for the filling, at -1

    def children(self, state: int, past: int, /) -> tuple[Integers, Integers, Integers]:
        """The tokens that may follow a token (the past)."""
        edges = self._fitting[state]
        rows = self._rows[edges.tokens]
        built = self._is_built[rows]
        # A token that no merges lead to can only be a whole pre-token, if the model looks for those first.
        kept = built | (~edges.inside & self._table.whole_words_first)
        if past == _ENDS_PRETOKEN:
            kept &= ~edges.inside
        elif past != FRESH:
            kept &= ~(edges.inside & self._merged_over(state, past, rows))
        pasts = np.where(built, edges.tokens, _ENDS_PRETOKEN)
        return edges.tokens[kept], edges.targets[kept], pasts[kept]

    def _merged_over(self, state: int, last: int, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each token that fits at a state, whether a merge reaches over the boundary between the last and it."""
        spines = self._table.spines(last)
        assert spines is not None, "a token that no merges lead to ends its pre-token"
        merged = np.zeros(len(rows), dtype=bool)
        for symbol in spines.right:
            if len(self._table.partners(symbol.token)[0]):
                merged |= self._first_merge(state, symbol, rows) < symbol.ends
        return merged

    def _first_merge(self, state: int, symbol: Symbol, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rank of the first merge of a symbol with what the tokens that fit at a state begin with.

        Only merges of symbols that were there before: then they live at the same time. (In merges that no training
        found others may occur; nothing is concluded from them.)
        """
        key = state, symbol.token, symbol.begins
        if key in self._first_merges:
            return self._first_merges[key]
        partners, ranks = self._table.partners(symbol.token)
        first, begins, ends = self._left[:, rows]
        self._ranks[partners] = ranks
        rank = self._ranks[first]
        self._ranks[partners] = _NEVER
        possible = (rank > begins) & (rank > symbol.begins) & (rank <= ends)
        found: NDArray[np.int64] = np.where(possible, rank, _NEVER).min(axis=1, initial=_NEVER)
        if symbol.ends != _NEVER:  # a symbol inside of tokens is asked for again, with other tokens
            self._first_merges[key] = found
        return found
