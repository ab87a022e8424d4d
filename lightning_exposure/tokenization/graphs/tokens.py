"""Format x tokenizer: which tokens may follow at each place of a secret.

A place is a state of the format's texts, reached at the end of a token, with what must be remembered of the tokens
before it to tell whether the path can still be canonical (see `canonical`). With one token per character that is the
position in the pattern; with subwords one token may fill three digits, or a digit and the dash after it, and the set
of tokens that fit differs from place to place.

Usually all places are found at once, those that lead to no secret are left out, and equal ones are made one. The
number of paths is then known exactly: if it is the number of secrets, every path is a canonical one. Where there are
too many places (eight letters of a vocabulary with ten thousand tokens of letters), they are found as walks come to
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import overload

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.secrets.formats.graph import PathsAhead, paths_ahead, reachable
from lightning_exposure.tokenization._vocabulary import FittingTokens
from lightning_exposure.tokenization.canonical.rule import FRESH, AnySpelling, CanonicalRule, Integers

Booleans = NDArray[np.bool_]
Row = tuple[Integers, Integers]
"""The tokens that may follow at a place, in increasing order, and where each leads."""

LARGEST_NUMBER_OF_EDGES = 400_000
"""Of an automaton whose places are all found at once."""


class TokenAutomaton:
    """Places, which are numbered, and the tokens that lead from one to the next.

    Args:
        fitting: The tokens that fit in the texts of the format.
        start: The state of the texts where the tree begins.
        rule: Which tokens may follow; None: all that fit, which are always found at once.
        past: What the rule remembers at the start.
        most_edges: The largest number of edges that are found at once; None: `LARGEST_NUMBER_OF_EDGES`.

    Attributes:
        start: The place where the tree begins.
        paths: How many paths lead to a complete secret; None if not all places were found.
        number_of_edges: How many edges were found at once, before equal places were made one.
        depth: The largest number of tokens from the start to a complete secret, or a little more.
        shortest: The smallest number of tokens from the start to a complete secret, or a little less.
        interruptions: The largest number of places on one path where a secret is complete and others go on.
    """

    def __init__(
        self,
        fitting: FittingTokens,
        start: int,
        rule: CanonicalRule | None = None,
        past: int = FRESH,
        *,
        most_edges: int | None = None,
    ) -> None:
        self._texts = fitting.texts
        self._rule = AnySpelling(fitting) if rule is None else rule
        # Where nothing goes on inside a pre-token, nothing has to be remembered.
        self._forgets = fitting.forgets
        self._keys = [(start, FRESH if self._forgets[start] else past)]
        self._numbers = {self._keys[0]: 0}
        self._rows: list[Row | None] = [None]
        self._accepting = self._open = np.zeros(0, dtype=bool)
        self.start = 0
        self.paths: int | None = None
        self.number_of_edges = self.depth = self.shortest = self.interruptions = 0
        limit = LARGEST_NUMBER_OF_EDGES if most_edges is None else most_edges
        if self._find_all(math.inf if rule is None else limit):
            self._compact()
        else:
            self._estimate_lengths(max(map(len, fitting.vocabulary.texts.values())))

    @classmethod
    def of_paths(cls, paths: Sequence[Sequence[int]]) -> TokenAutomaton:
        """The automaton of exactly these paths, which are all different."""
        made = cls.__new__(cls)  # there are no texts to find places in: they are all here
        kept = _Places()
        stack: list[_Unfinished] = [_Unfinished()]
        before: tuple[int, ...] = ()
        for path in sorted(map(tuple, paths)):
            shared = next((i for i, (a, b) in enumerate(zip(before, path, strict=False)) if a != b), len(before))
            _finish(kept, stack, before, shared)
            stack.extend(_Unfinished() for _ in path[shared:])
            stack[-1].accepting = True
            before = path
        _finish(kept, stack, before, 0)
        start = kept.add(*stack[0].row())
        made.start, made.number_of_edges = 0, sum(len(tokens) for tokens, _ in kept.rows)
        made._take(kept, start)
        return made

    def __len__(self) -> int:
        """The number of places found so far."""
        return len(self._rows)

    def edges(self, place: int, /) -> Mapping[int, int]:
        """The tokens that may follow at a place, and the place after each; `children` has the same as arrays."""
        tokens, targets = self.children(place)
        return dict(zip(tokens.tolist(), targets.tolist(), strict=True))

    @overload
    def accepting(self, place: int, /) -> bool: ...
    @overload
    def accepting(self, place: Integers, /) -> Booleans: ...
    def accepting(self, place: int | Integers, /) -> bool | Booleans:
        """Whether a secret is complete at a place, or at each of some places."""
        self._look_at_new_places()
        return self._accepting[place] if isinstance(place, np.ndarray) else bool(self._accepting[place])

    @overload
    def open(self, place: int, /) -> bool: ...
    @overload
    def open(self, place: Integers, /) -> Booleans: ...
    def open(self, place: int | Integers, /) -> bool | Booleans:
        """Whether tokens may follow at a place, or at each of some places."""
        self._look_at_new_places()
        return self._open[place] if isinstance(place, np.ndarray) else bool(self._open[place])

    def children(self, place: int) -> Row:
        """The tokens that may follow at a place, in increasing order, and where each leads."""
        row = self._rows[place]
        if row is None:
            row = self._rows[place] = self._find(place)
        return row

    def starting_at(self, place: int) -> TokenAutomaton:
        """The same, begun at the only place that follows the start."""
        part = copy(self)
        part.start, part.depth, part.shortest = place, self.depth - 1, max(0, self.shortest - 1)
        return part

    def walk(self, paths: NDArray[np.int32]) -> Integers:
        """The place that each path of tokens leads to from the start; -1 if it does not fit.

        Args:
            paths: One row each, shorter paths filled up with -1.
        """
        places = np.full(len(paths), self.start, dtype=np.int64)
        for column in paths.T:
            moving = np.flatnonzero((column >= 0) & (places >= 0))
            if not len(moving):
                break
            moving = moving[np.argsort(places[moving], kind="stable")]
            stand, first = np.unique(places[moving], return_index=True)
            for place, rows in zip(stand.tolist(), np.split(moving, first[1:]), strict=True):
                tokens, targets = self.children(place)
                wanted = column[rows]
                at = np.minimum(np.searchsorted(tokens, wanted), len(tokens) - 1)
                places[rows] = np.where(tokens[at] == wanted, targets[at], -1) if len(tokens) else -1
        return places

    def _find(self, place: int) -> Row:
        """Ask the rule what may follow, and number the places that are new."""
        tokens, states, pasts = self._rule.children(*self._keys[place])
        pasts = np.where(self._forgets[states], FRESH, pasts)
        targets = np.empty(len(tokens), dtype=np.int64)
        for i, key in enumerate(zip(states.tolist(), pasts.tolist(), strict=True)):
            number = self._numbers.setdefault(key, len(self._keys))
            if number == len(self._keys):
                self._keys.append(key)
                self._rows.append(None)
            targets[i] = number
        return tokens, targets

    def _find_all(self, most_edges: float) -> bool:
        """Find all places, if they have no more than so many edges."""
        place = 0
        while place < len(self._rows):
            self.number_of_edges += len(self.children(place)[0])
            if self.number_of_edges > most_edges:
                return False
            place += 1
        return True

    def _estimate_lengths(self, longest_token: int) -> None:
        """Limits for the lengths of paths: as many tokens as bytes, or as long tokens as there are."""
        start = self._keys[0][0]
        ahead = paths_ahead(self._texts, start)[start]
        self.depth, self.interruptions = ahead.longest, ahead.interruptions
        self.shortest = math.ceil(ahead.shortest / longest_token)

    def _look_at_new_places(self) -> None:
        """Whether new places are complete and open: so far only the texts tell."""
        if len(self._accepting) < len(self._rows):
            states = [state for state, _ in self._keys[len(self._accepting) :]]
            ends = np.array([self._texts.accepting(state) for state in states], dtype=bool)
            goes_on = np.array([bool(self._texts.edges(state)) for state in states], dtype=bool)
            self._accepting = np.concatenate([self._accepting, ends])
            self._open = np.concatenate([self._open, goes_on])

    def _compact(self) -> None:
        """Count the paths, leave out places that lead to no secret, and make equal places one."""
        order = {state: i for i, state in enumerate(reachable(self._texts, self._keys[0][0]))}
        backwards = sorted(range(len(self._rows)), key=lambda place: -order[self._keys[place][0]])
        merged = np.full(len(self._rows), -1, dtype=np.int64)
        kept = _Places()
        for place in backwards:
            tokens, targets = self.children(place)
            targets = merged[targets]
            alive = targets >= 0
            merged[place] = kept.add(self._texts.accepting(self._keys[place][0]), tokens[alive], targets[alive])
        start = int(merged[0])
        self._rule = self._keys = self._numbers = None  # type: ignore[assignment]
        self._take(kept, start)

    def _take(self, kept: _Places, start: int) -> None:
        """Have these places, and no others."""
        if start < 0:  # no secret can be spelled at all
            nothing = np.zeros(0, dtype=np.int64)
            self._rows, self.paths = [(nothing, nothing)], 0
            self._accepting = self._open = np.zeros(1, dtype=bool)
            return
        self.paths, self.depth, self.shortest, self.interruptions = kept.ahead[start]
        # The start is number 0; every place stands before those that follow it, as it was made after them.
        number = start - np.arange(start + 1)
        rows = [(tokens, number[targets]) for tokens, targets in kept.rows[start::-1]]
        self._rows = [*rows]
        self._accepting = np.array(kept.accepting[start::-1], dtype=bool)
        self._open = np.array([len(tokens) > 0 for tokens, _ in rows], dtype=bool)


class _Unfinished:
    """A place to which children are still added, in the order of their tokens."""

    __slots__ = ("accepting", "targets", "tokens")

    def __init__(self) -> None:
        self.accepting = False
        self.tokens: list[int] = []
        self.targets: list[int] = []

    def row(self) -> tuple[bool, Integers, Integers]:
        return self.accepting, np.array(self.tokens, dtype=np.int64), np.array(self.targets, dtype=np.int64)


def _finish(kept: _Places, stack: list[_Unfinished], path: Sequence[int], length: int) -> None:
    """Nothing more comes below the last places of a path: they are kept, and become children of those before them."""
    while len(stack) > length + 1:
        number = kept.add(*stack.pop().row())
        stack[-1].tokens.append(path[len(stack) - 1])
        stack[-1].targets.append(number)


class _Places:
    """Places that lead to a secret, made from the last to the first; equal ones are one."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.accepting: list[bool] = []
        self.ahead: list[PathsAhead] = []
        self._known: dict[tuple[bool, bytes, bytes], int] = {}

    def add(self, accepting: bool, tokens: Integers, targets: Integers) -> int:
        """The number of a place with these children, which were all added before; -1 if it leads to no secret."""
        if not accepting and not len(tokens):
            return -1
        key = accepting, tokens.tobytes(), targets.tobytes()
        if key not in self._known:
            self._known[key] = len(self.rows)
            self.rows.append((tokens, targets))
            self.accepting.append(accepting)
            after, ways = np.unique(targets, return_counts=True)
            below = zip([self.ahead[i] for i in after.tolist()], ways.tolist(), strict=True)
            self.ahead.append(PathsAhead.of(accepting, below))
        return self._known[key]
