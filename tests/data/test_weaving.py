"""Putting entries into a stream: nothing lost, nothing twice, and the stream as it was."""

from __future__ import annotations

import random
from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_exposure.data._weaving import REPEAT, share, weave, weave_unknown
from lightning_exposure.data.ledger import Ledger
from lightning_exposure.errors import ArgumentError

sizes = st.integers(0, 40)
seeds = st.integers(0, 10**6)


@given(length=sizes, extra=sizes, seed=seeds)
def test_both_come_out_whole_and_in_order(length: int, extra: int, seed: int) -> None:
    stream, added = list(range(length)), [f"x{number}" for number in range(extra)]
    hint = None if seed % 2 else 1 + seed % 50
    for woven in (
        list(weave(stream, length, added, random.Random(seed))),
        list(weave_unknown(stream, added, random.Random(seed), hint=hint)),
    ):
        assert [entry for entry in woven if isinstance(entry, int)] == stream
        assert [entry for entry in woven if isinstance(entry, str)] == added


@given(length=st.integers(0, 60), extra=st.integers(0, 9), batch=st.integers(2, 12), seed=seeds)
def test_extra_entries_are_never_in_what_is_left_over(length: int, extra: int, batch: int, seed: int) -> None:
    stream, added = list(range(length)), [f"x{number}" for number in range(extra)]
    total = length + extra
    kept = total - total % batch
    if kept < extra:
        return
    hint = None if seed % 2 else 1 + seed % 90
    woven = list(weave(stream, length, added, random.Random(seed), batch_size=batch))
    assert [entry for entry in woven[:kept] if isinstance(entry, str)] == added
    if length >= batch:
        woven = list(weave_unknown(stream, added, random.Random(seed), hint=hint, batch_size=batch))
        assert [entry for entry in woven if isinstance(entry, int)] == stream
        assert [entry for entry in woven[:kept] if isinstance(entry, str)] == added


@given(length=st.integers(1, 30), extra=st.integers(0, 5), repeats=st.integers(0, 3), seed=seeds)
def test_a_repetition_is_of_the_stream_and_never_of_an_extra_entry(
    length: int, extra: int, repeats: int, seed: int
) -> None:
    added = [*(f"x{number}" for number in range(extra)), *[REPEAT] * repeats]
    random.Random(seed).shuffle(added)
    for woven in (
        list(weave(range(length), length, added, random.Random(seed))),
        list(weave_unknown(range(length), added, random.Random(seed))),
        list(weave_unknown(range(length), added, random.Random(seed), hint=9)),
    ):
        counts = Counter(woven)
        assert len(woven) == length + extra + repeats
        assert all(counts[f"x{number}"] == 1 for number in range(extra))
        assert sum(counts[number] - 1 for number in range(length)) == repeats


def test_places_are_uniform() -> None:
    counts: Counter[int] = Counter()
    for seed in range(6000):
        counts[list(weave(range(5), 5, "x", random.Random(seed))).index("x")] += 1
    assert set(counts) == set(range(6))
    assert all(abs(count - 1000) < 150 for count in counts.values())


def test_a_stream_shorter_than_it_says_costs_nothing() -> None:
    assert sorted(weave("ab", 99, "XYZ", random.Random(0))) == sorted("abXYZ")
    assert list(weave("", 5, [REPEAT, "X"], random.Random(0))) == ["X"]


def test_each_occurrence_belongs_to_one_process() -> None:
    parts = [share(11, 0, 3, slot, 4) for slot in range(4)]
    assert sorted(chain(*parts)) == list(range(11))
    assert max(map(len, parts)) - min(map(len, parts)) == 1
    assert share(11, 0, 4, 0, 4) != parts[0]


def test_ledger() -> None:
    ledger = Ledger(["a", "b"])
    ledger.add(2, ["a", "a"])
    ledger.add(0, ["b"])
    assert ledger.epochs == [0, 2]
    assert (ledger[0], ledger[1], ledger[2]) == ({"a": 0, "b": 1}, {"a": 0, "b": 0}, {"a": 2, "b": 0})
    assert ledger.total == {"a": 2, "b": 1}
    copy = Ledger(["a", "b"])
    copy.load_state_dict(ledger.state_dict())
    assert copy == ledger == ledger.gather()
    assert copy != 3
    assert ledger.without([(2, ["a"])])[2] == {"a": 1, "b": 0}
    assert ledger[2] == {"a": 2, "b": 0}
    assert repr(ledger) == "Ledger({0: {'a': 0, 'b': 1}, 2: {'a': 2, 'b': 0}})"
    with pytest.raises(
        ArgumentError,
        match=r"state is \['c'\]; expected counts of \['a', 'b'\]\. It counts canaries of another experiment",
    ):
        ledger.load_state_dict({"0": {"c": 1}})
