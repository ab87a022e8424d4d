"""The four graphs of a format are walked by the same functions, and hold the same texts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from lightning_exposure import CharTokenizer, SecretFormat
from lightning_exposure.secrets.formats.graph import (
    Graph,
    accepts,
    all_paths,
    count_paths,
    draw_path,
    only_way,
    paths_ahead,
    reachable,
    steps_behind,
    walk,
)
from lightning_exposure.tokenization.graphs.bytes import ByteTexts
from lightning_exposure.tokenization.graphs.texts import Texts
from lightning_exposure.tokenization.spelling import Spelling
from tests import oracle
from tests.tokenization.subword_models import KINDS

FORMATS = [
    SecretFormat("pin ##"),
    SecretFormat("key {word}-#", word=["", "a", "an", "and"]),
    SecretFormat("go {x}", x=["é", "e", "ee", "€"]),
    SecretFormat("card #-##", checksum="luhn"),
]
KIND_OF_GRAPH = ["acceptor", "texts", "bytes", "characters as tokens", "subwords as tokens"]


class Case(NamedTuple):
    """A graph, and how its paths and the texts of the format belong together."""

    graph: Graph[Any]
    text_of: Callable[[Sequence[Any]], str]
    path_of: Callable[[str], Sequence[Any]]


def of_spelling(spelling: Spelling) -> Case:
    assert spelling.exact
    return Case(spelling.automaton, spelling.text, lambda text: spelling.paths([text])[0].tolist())


def graph_of(kind: str, format: SecretFormat) -> Case:
    texts = Texts.of(format)
    if kind == "acceptor":
        return Case(format.acceptor(), "".join, list)
    if kind == "texts":
        return Case(texts, "".join, list)
    if kind == "bytes":
        return Case(ByteTexts(texts, None), lambda path: bytes(path).decode(), str.encode)
    if kind == "characters as tokens":
        return of_spelling(Spelling(format, CharTokenizer.from_text(*oracle.all_texts(format))))
    return of_spelling(Spelling(format, KINDS["byte-level BPE"]()))


def without_filling(path: Sequence[Any]) -> list[Any]:
    return [step for step in path if step != -1]


@pytest.fixture(params=KIND_OF_GRAPH)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("format", FORMATS, ids=str)
class TestAllFourHoldTheTexts:
    def test_listed(self, kind: str, format: SecretFormat) -> None:
        graph, text_of, _ = graph_of(kind, format)
        assert sorted(text_of(path) for path in all_paths(graph)) == sorted(oracle.all_texts(format))

    def test_counted(self, kind: str, format: SecretFormat) -> None:
        graph, _, _ = graph_of(kind, format)
        assert count_paths(graph) == format.size

    def test_looked_up(self, kind: str, format: SecretFormat) -> None:
        graph, _, path_of = graph_of(kind, format)
        paths = {tuple(without_filling(path_of(text))) for text in oracle.all_texts(format)}
        for path in paths:
            assert accepts(graph, path)
            for near in (path[:-1], path[1:], (*path, path[-1]), path[::-1]):
                assert accepts(graph, near) == (near in paths)
            first = walk(graph, path[:1])
            assert first is not None
            assert walk(graph, path[1:], first) == walk(graph, path)

    def test_drawn(self, kind: str, format: SecretFormat) -> None:
        graph, text_of, _ = graph_of(kind, format)
        ahead, generator = paths_ahead(graph), random.Random(0)
        rounds = 30
        drawn = Counter(text_of(draw_path(graph, ahead, generator)) for _ in range(rounds * format.size))
        assert drawn.keys() == set(oracle.all_texts(format))
        # Each count is about normal, with a variance of 30: six standard deviations either way.
        assert all(abs(count - rounds) < 6 * rounds**0.5 for count in drawn.values())

    def test_lengths(self, kind: str, format: SecretFormat) -> None:
        graph, _, path_of = graph_of(kind, format)
        paths = [without_filling(path_of(text)) for text in oracle.all_texts(format)]
        ahead = paths_ahead(graph)[graph.start]
        assert (ahead.longest, ahead.shortest) == (max(map(len, paths)), min(map(len, paths)))
        ends = {tuple(path) for path in paths}
        passed = [sum(tuple(path[:length]) in ends for length in range(len(path))) for path in paths]
        assert ahead.interruptions == max(passed)

    def test_steps_and_states(self, kind: str, format: SecretFormat) -> None:
        graph, _, path_of = graph_of(kind, format)
        paths = [without_filling(path_of(text)) for text in oracle.all_texts(format)]
        assert steps_behind(graph) == {step for path in paths for step in path}
        order = reachable(graph)
        place = {state: i for i, state in enumerate(order)}
        assert order[0] == graph.start
        assert len(place) == len(order)
        assert all(place[state] < place[after] for state in order for after in graph.edges(state).values())


def test_what_all_paths_begin_with() -> None:
    acceptor = SecretFormat("pin {n}", n=["1", "12"]).acceptor()
    way = only_way(acceptor)
    assert "".join(step for step, _ in way) == "pin 1"  # a text may end there, and others go on
    assert way[-1][1] == walk(acceptor, "pin 1")
    assert only_way(acceptor, way[-1][1]) == []


def test_a_large_format_is_counted_and_not_listed() -> None:
    format = SecretFormat("#" * 40)
    assert count_paths(format.acceptor()) == count_paths(Texts.of(format)) == 10**40


class Dead(NamedTuple):
    """From state 1 no end is reached."""

    start: int = 0

    def edges(self, state: int, /) -> dict[str, int]:
        return {"a": 1, "b": 2} if state == 0 else {}

    def accepting(self, state: int, /) -> bool:
        return state == 2


def test_ways_that_lead_nowhere_do_not_count() -> None:
    graph = Dead()
    assert paths_ahead(graph)[0] == (1, 1, 1, 0)
    assert list(all_paths(graph)) == [("b",)]
    assert {tuple(draw_path(graph, paths_ahead(graph), random.Random(seed))) for seed in range(20)} == {("b",)}
