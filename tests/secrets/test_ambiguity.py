"""A format in which two fillings give the same text is refused, with both fillings as the proof."""

from __future__ import annotations

import ast
import re
from collections import Counter
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lightning_exposure.errors import FormatError
from lightning_exposure.secrets import SecretFormat

WORDS = st.lists(st.text("ab1", max_size=3), min_size=1, max_size=4, unique=True)


def luhn_is_valid(digits: list[str]) -> bool:
    doubled = [sum(map(int, str(2 * int(d)))) if place % 2 else int(d) for place, d in enumerate(digits[::-1])]
    return sum(doubled) % 10 == 0


def fillings_by_text(pieces: list[str], words: dict[str, list[str]], luhn: bool) -> Counter[str]:
    """How many fillings give each text, by writing out all of them."""
    counts: Counter[str] = Counter()
    choices = [list("0123456789") if piece == "#" else words.get(piece, [piece]) for piece in pieces]
    for filling in product(*choices):
        digits = [string for piece, string in zip(pieces, filling, strict=True) if piece == "#"]
        if not luhn or luhn_is_valid(digits):
            counts["".join(filling)] += 1
    return counts


@given(
    st.lists(st.sampled_from(["{u}", "{v}", "#", "a", "1"]), min_size=1, max_size=4),
    WORDS,
    WORDS,
    st.booleans(),
)
@example(["{u}", "{v}"], ["a", "ab"], ["b", ""], False)
@example(["{u}", "{u}"], ["", "a"], [""], False)
@example(["{u}", "#", "#"], ["", "1"], [""], False)
@example(["#", "{u}", "#", "{v}"], ["", "1"], ["1", ""], True)
@example(["{u}", "#", "{u}", "#"], ["", "1"], ["a"], True)
def test_refusal_agrees_with_writing_out_all_fillings(
    pieces: list[str], u: list[str], v: list[str], luhn: bool
) -> None:
    words = {"{u}": u, "{v}": v}
    used: dict[str, Any] = {name[1]: words[name] for name in words if name in pieces}
    if not used and "#" not in pieces:
        return
    luhn = luhn and pieces.count("#") >= 2
    counts = fillings_by_text(pieces, words, luhn)
    try:
        format_ = SecretFormat("".join(pieces), checksum="luhn" if luhn else None, **used)
    except FormatError as error:
        found = re.search(r"the fillings (\(.*?\)) and (\(.*?\)) give the same text ('.*?');", str(error))
        assert found
        one, other, text = map(ast.literal_eval, found.groups())
        assert one != other
        assert counts[text] > 1
        for filling in (one, other):
            strings = iter(filling)
            blanks = ("#", "{u}", "{v}")
            assert "".join(next(strings) if piece in blanks else piece for piece in pieces) == text
    else:
        assert max(counts.values()) == 1
        assert format_.size == len(counts)
        assert {format_.render(number) for number in range(format_.size)} == set(counts)


def test_the_message_names_both_fillings_and_the_text() -> None:
    with pytest.raises(FormatError) as caught:
        SecretFormat("to {first}{last}", first=["Ann", "Anna"], last=["lee", "alee"])
    assert "the fillings ('Ann', 'alee') and ('Anna', 'lee') give the same text 'to Annalee'" in str(caught.value)
    assert "Put a separator between the blanks" in str(caught.value)


def test_the_message_shows_a_complete_text() -> None:
    # The two readings meet again long before the end; the proof goes on to a text of the format.
    with pytest.raises(FormatError, match=r"\('a', '', '0', '0'\).*'a 00!'"):
        SecretFormat("{u}{v} ##!", u=["", "a"], v=["", "a"], checksum="luhn")


def test_a_checksum_can_tell_fillings_apart() -> None:
    # In "12" and a check digit, either 1 or 2 is in the first blank: only the check digit tells which.
    words: dict[str, Any] = {"u": ["", "1"], "v": ["", "2"]}
    with pytest.raises(FormatError, match="give the same text '12"):
        SecretFormat("{u}#{v}#", **words)
    format_ = SecretFormat("{u}#{v}#", checksum="luhn", **words)
    assert format_.fillings("126") == ("1", "2", "", "6")
    assert format_.fillings("128") == ("", "1", "2", "8")


def test_separators_that_words_contain_are_seen_through() -> None:
    with pytest.raises(FormatError, match=r"'a-b-c'"):
        SecretFormat("{u}-{v}", u=["a", "a-b"], v=["c", "b-c"])
    assert SecretFormat("{u}-{v}", u=["a", "a-b"], v=["c", "d-c"]).size == 4


@pytest.mark.parametrize("pattern", ["{w}{w}", "{w}{w}{w} {w}", "{w}??{w}", "{w}#{w}{w}"])
def test_hundreds_of_words_need_little_work(pattern: str, counted_steps: list[int]) -> None:
    words = ["".join(letters) for letters in product("abcdefgh", repeat=3)]
    format_ = SecretFormat(pattern, w=words)  # all of the same length, so never ambiguous
    assert format_.size >= 512**2
    with pytest.raises(FormatError, match="give the same text"):
        SecretFormat(pattern + "{w}", w=["", *words, "abcabc"])
    assert len(counted_steps) < 200, "the letters of 512 words are steps of a few states"
