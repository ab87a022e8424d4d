"""The acceptor accepts exactly the texts of a format."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lightning_exposure.errors import ArgumentError, FormatError
from lightning_exposure.secrets import Acceptor, SecretFormat

WORDS = st.lists(st.text("ab1", max_size=3), min_size=1, max_size=4, unique=True)


@st.composite
def small_formats(draw: st.DrawFn) -> SecretFormat:
    """A format of at most a few thousand texts."""
    pieces = draw(st.lists(st.sampled_from(["{u}", "{v}", "#", "a", "1", r"\#", "-"]), min_size=1, max_size=6))
    assume(pieces.count("#") <= 3)
    words: dict[str, Any] = {name: draw(WORDS) for name in "uv" if f"{{{name}}}" in pieces}
    checksum = draw(st.sampled_from([None, "luhn"])) if pieces.count("#") >= 2 else None
    try:
        format_ = SecretFormat("".join(pieces), checksum=checksum, **words)
    except FormatError:
        assume(False)
    assume(format_.size <= 2000)
    return format_


def accepts(acceptor: Acceptor, text: str) -> bool:
    state = acceptor.walk(text)
    return state is not None and acceptor.accepting(state)


def all_accepted(acceptor: Acceptor) -> list[str]:
    """Every accepted text, by following every edge."""
    found, open_ = [], [("", acceptor.start)]
    while open_:
        text, state = open_.pop()
        if acceptor.accepting(state):
            found.append(text)
        open_ += [(text + character, after) for character, after in acceptor.edges(state).items()]
    return found


@given(small_formats())
def test_accepts_exactly_the_texts_of_the_format(format_: SecretFormat) -> None:
    texts = [format_.render(number) for number in range(format_.size)]
    assert sorted(all_accepted(format_.acceptor())) == sorted(texts)


@given(small_formats(), st.data())
def test_near_misses_are_not_accepted(format_: SecretFormat, data: st.DataObject) -> None:
    text = format_.render(data.draw(st.integers(0, format_.size - 1)))
    place = data.draw(st.integers(0, len(text)))
    character = data.draw(st.sampled_from("ab1-#0x"))
    texts = {format_.render(number) for number in range(format_.size)}
    for near in (
        text[:place] + character + text[place:],
        text[:place] + text[place + 1 :],
        text[:place] + character + text[place + 1 :],
        text[:place],
    ):
        assert accepts(format_.acceptor(), near) == format_.fits(near) == (near in texts)


@given(small_formats())
def test_states_are_numbered_breadth_first_and_all_lead_to_a_text(format_: SecretFormat) -> None:
    acceptor = format_.acceptor()
    assert acceptor.start == 0
    order, queue = [0], deque([0])
    while queue:
        for after in acceptor.edges(queue.popleft()).values():
            if after not in order:
                order.append(after)
                queue.append(after)
    assert order == list(range(len(acceptor)))
    # An acceptor of finitely many texts has no cycles: a state without edges must be the end of a text.
    assert all(acceptor.edges(state) or acceptor.accepting(state) for state in range(len(acceptor)))


def test_reading_begins_with_the_prompt() -> None:
    acceptor = SecretFormat("pin: #").acceptor()
    assert dict(acceptor.edges(acceptor.start)) == {"p": 1}
    assert len(acceptor) == 7
    state = acceptor.walk("pin: ")
    assert state is not None
    assert sorted(acceptor.edges(state)) == list("0123456789")
    assert acceptor.walk("7", state) == acceptor.walk("pin: 7") == 6
    assert acceptor.walk("", state) == state
    assert acceptor.walk("pin: 77") is None
    assert not acceptor.accepting(state)
    assert acceptor.accepting(6)


def test_words_share_their_beginnings_and_endings() -> None:
    words = ["north wing", "south wing", "northern wing"]
    acceptor = SecretFormat("{w}!", w=words).acceptor()
    # The start, "north", "sout", "er", then one state for what comes after "south" and "northern", and " wing!".
    assert len(acceptor) == 1 + 5 + 4 + 2 + 1 + 6
    assert sorted(all_accepted(acceptor)) == sorted(f"{word}!" for word in words)


def test_the_checksum_costs_ten_states_per_digit() -> None:
    acceptor = SecretFormat("#" * 16, checksum="luhn").acceptor()
    assert len(acceptor) == 1 + 15 * 10 + 1
    before_last = acceptor.walk("411111111111111")
    assert before_last is not None
    assert list(acceptor.edges(before_last)) == ["1"], "only the right check digit can follow"


def test_made_once_and_read_only() -> None:
    format_ = SecretFormat.pin()
    acceptor = format_.acceptor()
    assert format_.acceptor() is acceptor
    assert repr(acceptor) == f"<Acceptor of {len(acceptor)} states>"
    with pytest.raises(TypeError):
        acceptor.edges(0)["x"] = 1  # type: ignore[index]


@pytest.mark.parametrize("state", [-1, 15, 10**9])
def test_unknown_states_are_refused(state: int) -> None:
    acceptor = SecretFormat.pin().acceptor()
    assert len(acceptor) == 15
    for question in (acceptor.edges, acceptor.accepting, lambda state: acceptor.walk("", state)):
        with pytest.raises(ArgumentError, match=f"state is {state}; expected a state from 0 to 14"):
            question(state)


def test_the_address_format_needs_little_work(counted_steps: list[int]) -> None:
    format_ = SecretFormat.address()
    counted_steps.clear()
    acceptor = format_.acceptor()
    assert len(counted_steps) == len(acceptor) < 2000, "words share their letters, and every state is looked at once"
    assert all(accepts(acceptor, text) for text in format_.sample(200, seed=0))
