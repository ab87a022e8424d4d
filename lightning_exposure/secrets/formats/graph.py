"""How the graphs of a format are walked: one protocol, and the functions that count, list, draw and look up its paths.

The texts of a format are a graph in four forms: of characters (`Acceptor`, `Texts`), of bytes (`ByteTexts`) and of
tokens (`TokenAutomaton`). Each says what may follow at a state and whether a path may end there; what follows from that
is written once, here. No path comes back to a state that it has passed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol, TypeVar

Step = TypeVar("Step")


class Graph(Protocol[Step]):
    """States, which are numbered, and the steps that lead from one to the next."""

    @property
    def start(self) -> int:
        """The state before the first step."""
        ...

    def edges(self, state: int, /) -> Mapping[Step, int]:
        """The steps that may follow at a state, and the state after each."""
        ...

    def accepting(self, state: int, /) -> bool:
        """Whether a path may end at a state."""
        ...


class PathsAhead(NamedTuple):
    """What lies between a state and the ends of the paths through it."""

    number: int
    """How many ways lead to an end."""
    longest: int
    """The largest number of steps to an end."""
    shortest: int
    """The smallest number of steps to an end."""
    interruptions: int
    """The largest number of states on one way where a path may end and others go on."""

    @classmethod
    def of(cls, accepting: bool, below: Iterable[tuple[PathsAhead, int]]) -> PathsAhead:
        """From whether a path may end here, and from what lies behind each next state, with the steps that lead there.

        States from which no end is reached do not count.
        """
        alive = [(ahead, steps) for ahead, steps in below if ahead.number]
        return cls(
            number=accepting + sum(ahead.number * steps for ahead, steps in alive),
            longest=max((1 + ahead.longest for ahead, _ in alive), default=0),
            shortest=0 if accepting else min((1 + ahead.shortest for ahead, _ in alive), default=0),
            interruptions=(accepting and bool(alive)) + max((ahead.interruptions for ahead, _ in alive), default=0),
        )


def walk(graph: Graph[Step], steps: Iterable[Step], state: int | None = None) -> int | None:
    """The state after some steps from a state, or from the start; None if one of them does not fit."""
    at: int | None = graph.start if state is None else state
    for step in steps:
        if at is None:
            return None
        at = graph.edges(at).get(step)
    return at


def accepts(graph: Graph[Step], steps: Iterable[Step]) -> bool:
    """Whether some steps are a whole path.

    >>> from lightning_exposure.secrets import SecretFormat
    >>> acceptor = SecretFormat("pin ##").acceptor()
    >>> accepts(acceptor, "pin 42"), accepts(acceptor, "pin 4")
    (True, False)
    """
    state = walk(graph, steps)
    return state is not None and graph.accepting(state)


def reachable(graph: Graph[Step], start: int | None = None) -> list[int]:
    """The states that can be reached from one, itself first, each before all that come behind it."""
    first = graph.start if start is None else start
    finished: list[int] = []
    seen = {first}
    stack = [(first, iter(graph.edges(first).values()))]
    while stack:
        state, following = stack[-1]
        after = next(following, None)
        if after is None:
            stack.pop()
            finished.append(state)
        elif after not in seen:
            seen.add(after)
            stack.append((after, iter(graph.edges(after).values())))
    return finished[::-1]


def steps_behind(graph: Graph[Step], start: int | None = None) -> set[Step]:
    """The steps that occur on some way from a state."""
    return {step for state in reachable(graph, start) for step in graph.edges(state)}


def paths_ahead(graph: Graph[Step], start: int | None = None) -> dict[int, PathsAhead]:
    """For each state that can be reached from one, what lies ahead of it."""
    ahead: dict[int, PathsAhead] = {}
    for state in reversed(reachable(graph, start)):
        below = ((ahead[after], 1) for after in graph.edges(state).values())
        ahead[state] = PathsAhead.of(bool(graph.accepting(state)), below)
    return ahead


def count_paths(graph: Graph[Step], start: int | None = None) -> int:
    """How many paths there are.

    >>> from lightning_exposure.secrets import SecretFormat
    >>> count_paths(SecretFormat("pin {n}", n=["1", "12"]).acceptor())
    2
    """
    return paths_ahead(graph, start)[graph.start if start is None else start].number


def only_way(graph: Graph[Step], start: int | None = None) -> list[tuple[Step, int]]:
    """The steps that all paths begin with, each with the state after it: up to the first choice or the first end."""
    state = graph.start if start is None else start
    way: list[tuple[Step, int]] = []
    while len(edges := graph.edges(state)) == 1 and not graph.accepting(state):
        ((step, state),) = edges.items()
        way.append((step, state))
    return way


def all_paths(graph: Graph[Step], start: int | None = None) -> Iterator[tuple[Step, ...]]:
    """Every path, in the order of the edges; one that others go on from before those.

    >>> from lightning_exposure.secrets import SecretFormat
    >>> ["".join(path) for path in all_paths(SecretFormat("pin {n}", n=["1", "12"]).acceptor())]
    ['pin 1', 'pin 12']
    """
    first = graph.start if start is None else start
    steps: list[Step] = []
    if graph.accepting(first):
        yield ()
    stack = [iter(graph.edges(first).items())]
    while stack:
        edge = next(stack[-1], None)
        if edge is None:
            stack.pop()
            del steps[-1:]
            continue
        step, state = edge
        steps.append(step)
        if graph.accepting(state):
            yield tuple(steps)
        stack.append(iter(graph.edges(state).items()))


def draw_path(
    graph: Graph[Step], ahead: Mapping[int, PathsAhead], generator: random.Random, start: int | None = None
) -> list[Step]:
    """One of all paths, each equally likely.

    Args:
        graph: The graph.
        ahead: What `paths_ahead` found, at least behind the start.
        generator: Where randomness comes from.
        start: Where the path begins; None: at the graph's start.
    """
    state = graph.start if start is None else start
    steps: list[Step] = []
    while True:
        chosen = generator.randrange(ahead[state].number)
        if graph.accepting(state):
            if chosen == 0:
                return steps
            chosen -= 1
        for step, after in graph.edges(state).items():
            if chosen < ahead[after].number:
                steps.append(step)
                state = after
                break
            chosen -= ahead[after].number
