"""Heaviest first: how much probability certain texts have, over all the ways to spell them.

The heaviest open node is expanded next. What has led to a text is found for certain; what is open may still lead to
one or not. So the probability lies between what was found and that and all that is open, wherever the walk stops.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lightning_exposure._checks import number, whole_number
from lightning_exposure.adapters.states import ModelState
from lightning_exposure.tree.path_reader import PathReader, Reading
from lightning_exposure.tree.secret_tree import SecretTree
from lightning_exposure.walks._state_pool import StatePool
from lightning_exposure.walks.batches import DEFAULT_MEMORY, rows_within

Bounds = Callable[[Tensor], tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Between what the probability of each token lies, given logits `(rows, vocabulary)`."""

_LARGEST_BATCH = 64
_SMALLEST = math.ulp(0.0)
"""The smallest number above 0: what is too small to be a number counts as this much where it is a bound."""


class Followers(Protocol):
    """Tokens that lead to the same place of a target in the same way."""

    @property
    def tokens(self) -> NDArray[np.int64]:
        """The token ids."""
        ...

    @property
    def target(self) -> int:
        """The state behind them; -1 where nothing more can follow."""
        ...

    @property
    def piece(self) -> bytes:
        """What they write."""
        ...

    @property
    def completes(self) -> tuple[int, ...]:
        """How many bytes of the piece end a text, for each text that ends in it."""
        ...


class Target(Protocol):
    """The texts that count."""

    @property
    def start(self) -> int:
        """The state that the prompt leads to."""
        ...

    def following(self, state: int, /) -> Sequence[Followers]:
        """The tokens that may follow at a state."""
        ...


@dataclass
class Mass:
    """How much probability was found, and how much is open.

    Attributes:
        low: What was found for certain.
        high: What was found, if every token that rounding may have cut off counts.
        open: What may be found yet.
        expansions: How many nodes the model read.
        found: For each text that was written: the same two numbers.
        waiting: How much is open behind each beginning of a text.
    """

    low: float = 0.0
    high: float = 0.0
    open: float = 0.0
    expansions: int = 0
    found: dict[bytes, tuple[float, float]] = field(default_factory=dict)
    waiting: dict[bytes, float] = field(default_factory=dict)

    def of(self, text: bytes) -> tuple[float, float]:
        """Between what the probability of one of the texts lies."""
        low, high = self.found.get(text, (0.0, 0.0))
        beginnings = (self.waiting.get(text[:length], 0.0) for length in range(len(text)))
        return low, math.fsum([high, *beginnings])


class _Node(NamedTuple):
    """An open node: a token that the model has not read yet."""

    low: float
    high: float
    parent: int
    token: int
    state: int
    written: bytes
    counted: bool  # whether a text is complete already, and a longer one may follow


def heaviest_first(
    tree: SecretTree,
    prompt: Sequence[int],
    target: Target,
    bounds: Bounds,
    *,
    tolerance: float,
    budget: int = 100_000,
    memory: int = DEFAULT_MEMORY,
) -> Mass:
    """How likely a model is to write one of some texts behind a prompt.

    Args:
        tree: What holds the model.
        prompt: The tokens that the model is given.
        target: The texts.
        bounds: What logits make of the probability of each token.
        tolerance: The walk ends when all that is open is no more than this part of what was found.
        budget: The largest number of expansions.
        memory: The limit for model states, in bytes; states that do not fit are computed again.
    """
    number("tolerance", tolerance, above=0, remedy="For example 0.01.")
    whole_number("budget", budget, at_least=1, remedy="It counts expansions.")
    batch = min(_LARGEST_BATCH, rows_within(tree, memory, blocks=4))
    with tree.reader(prompt) as reader:
        walk = _Walk(tree, reader, target, bounds, memory)
        walk.begin()
        while walk.open > tolerance * walk.mass.low and walk.mass.expansions < budget:
            walk.expand(min(batch, budget - walk.mass.expansions), tolerance)
    return walk.result()


class _Walk:
    """A walk under way."""

    def __init__(self, tree: SecretTree, reader: PathReader, target: Target, bounds: Bounds, memory: int) -> None:
        self._reader, self._target, self._bounds, self._memory = reader, target, bounds, memory
        self._pool = StatePool(tree.model)
        self._expanded: list[tuple[int, int]] = []  # of each node that was read: its parent and its token
        self._heap: list[tuple[float, int, _Node]] = []
        self._pushed = 0
        self._vanished = False
        self.open = 0.0
        self._largest_open = 0.0
        self.mass = Mass()

    def begin(self) -> None:
        """Read the prompt."""
        root = _Node(1.0, 1.0, -1, -1, self._target.start, b"", False)
        self._take_in([root], self._reader.start())

    def expand(self, count: int, tolerance: float) -> None:
        """Read the heaviest open nodes."""
        chosen: list[_Node] = []
        while self._heap and len(chosen) < count and self.open > tolerance * self.mass.low:
            node = heapq.heappop(self._heap)[2]
            self._take_out(node.high)
            chosen.append(node)
        parents = np.array([node.parent for node in chosen], dtype=np.int64)
        state, kept = self._pool.gather(parents)
        lost = sorted(set(range(len(chosen))) - set(kept.tolist()))
        if state is not None:
            nodes = [chosen[row] for row in kept.tolist()]
            self._take_in(nodes, self._reader.step(state, _tokens_of(nodes)))
        for row in lost:
            node = chosen[row]
            self._take_in([node], self._reader.step(self._read_again(node.parent), _tokens_of([node])))
        self._pool.release(parents)

    def result(self) -> Mass:
        """What was found so far."""
        for _, _, node in self._heap:
            self.mass.waiting[node.written] = self.mass.waiting.get(node.written, 0.0) + node.high
        smallest = _SMALLEST if self._vanished else 0.0
        self.mass.open = math.fsum([smallest, *(node.high for _, _, node in self._heap if not node.counted)])
        return self.mass

    def _take_in(self, nodes: Sequence[_Node], reading: Reading) -> None:
        """Count what the children of some nodes complete, and keep those that go on."""
        low, high = self._bounds(reading.logits)
        first = len(self._expanded)
        self.mass.expansions += len(nodes)
        waiting = np.zeros(len(nodes), dtype=np.int64)
        for row, node in enumerate(nodes):
            self._expanded.append((node.parent, node.token))
            for tokens in self._target.following(node.state):
                lows, highs = node.low * low[row, tokens.tokens], node.high * high[row, tokens.tokens]
                self._vanished |= bool((highs[high[row, tokens.tokens] > 0.0] == 0.0).any())
                if tokens.completes:
                    self._count(node, tokens, float(lows.sum()), min(node.high, float(highs.sum())))
                if tokens.target >= 0:
                    waiting[row] += self._push(node, tokens, lows, highs, first + row)
        owners = np.arange(first, first + len(nodes))
        room = self._memory // 2
        self._pool.shrink_to(room)
        self._pool.add(reading.state, owners, waiting, room - self._pool.nbytes)

    def _count(self, node: _Node, tokens: Followers, low: float, high: float) -> None:
        for end in tokens.completes:
            text = node.written + tokens.piece[:end]
            before = self.mass.found.get(text, (0.0, 0.0))
            self.mass.found[text] = before[0] + low, before[1] + high
        if not node.counted:
            self.mass.low += low
            self.mass.high += high

    def _push(
        self, node: _Node, tokens: Followers, lows: NDArray[np.float64], highs: NDArray[np.float64], parent: int
    ) -> int:
        """Put the tokens that go on into the heap; how many."""
        pushed = 0
        written, counted = node.written + tokens.piece, node.counted or bool(tokens.completes)
        for token, low, high in zip(tokens.tokens.tolist(), lows.tolist(), highs.tolist(), strict=True):
            if high > 0.0:
                self._pushed += 1
                child = _Node(low, high, parent, token, tokens.target, written, counted)
                heapq.heappush(self._heap, (-high, self._pushed, child))
                self.open += high
                pushed += 1
        self._largest_open = max(self._largest_open, self.open)
        return pushed

    def _take_out(self, high: float) -> None:
        """Less is open now; added up anew when rounding could be what is left of the sum."""
        self.open -= high
        if self.open < 1e-6 * self._largest_open:
            self.open = self._largest_open = math.fsum(node.high for _, _, node in self._heap)

    def _read_again(self, number: int) -> ModelState:
        """The state behind a node whose state was not kept."""
        path: list[int] = []
        while number > 0:  # number 0 is the prompt
            number, token = self._expanded[number]
            path.append(token)
        reading = self._reader.start()
        for token in reversed(path):
            reading = self._reader.step(reading.state, np.array([token], dtype=np.int64))
        return reading.state


def _tokens_of(nodes: Sequence[_Node]) -> NDArray[np.int64]:
    return np.array([node.token for node in nodes], dtype=np.int64)
