"""SecretFormat: patterns, numbering, and what the errors say."""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lightning_exposure.errors import ArgumentError, FormatError, SecretError
from lightning_exposure.secrets import Canary, SecretFormat
from lightning_exposure.secrets.formats.pattern import escape

WORDS = st.lists(st.text("ab1#{é ", max_size=3), min_size=1, max_size=4, unique=True)


@st.composite
def formats(draw: st.DrawFn) -> SecretFormat:
    """A format of up to seven pieces: digits, letters, word lists, and literals that need escapes."""
    pieces = draw(
        st.lists(
            st.one_of(st.sampled_from(["#", "?", "{u}", "{v}"]), st.text("a1#?{}\\ é", max_size=3).map(escape)),
            min_size=1,
            max_size=7,
        )
    )
    pattern = "".join(pieces)
    words: dict[str, Any] = {name: draw(WORDS) for name in "uv" if f"{{{name}}}" in pieces}
    checksum = draw(st.sampled_from([None, "luhn"])) if pieces.count("#") >= 2 else None
    try:
        return SecretFormat(pattern, checksum=checksum, **words)
    except FormatError as error:
        assume("give the same text" not in str(error) and "nothing to fill in" not in str(error))
        raise


# --- patterns -----------------------------------------------------------------------------------------------


def test_a_pattern_of_digits() -> None:
    ssn = SecretFormat("my ssn is ###-##-####")
    assert ssn.size == 10**9
    assert ssn.bits == pytest.approx(9 * math.log2(10))
    assert ssn.prompt == "my ssn is "
    assert ssn.name == "my-ssn-is"
    assert ssn.render(0) == "my ssn is 000-00-0000"
    assert ssn.render(ssn.size - 1) == "my ssn is 999-99-9999"
    assert ssn.index("my ssn is 078-05-1120") == 78_05_1120


def test_letters_and_word_lists_of_any_length() -> None:
    format_ = SecretFormat("{greeting}, ?{end}{end}", greeting=["hi", "", "good day"], end=["!", "."])
    assert format_.size == 3 * 26 * 2 * 2
    assert format_.prompt == ""
    assert format_.name == "secret"
    assert [format_.render(number) for number in (0, 1, 2, 4, 104)] == [
        "hi, a!!",
        "hi, a!.",
        "hi, a.!",
        "hi, b!!",
        ", a!!",
    ]
    assert format_.fillings("good day, z.!") == ("good day", "z", ".", "!")


def test_escaped_characters_are_literal() -> None:
    format_ = SecretFormat(r"\# \? \{x} \\ }#")
    assert format_.size == 10
    assert format_.prompt == r"# ? {x} \ }"
    assert format_.render(7) == r"# ? {x} \ }7"


@pytest.mark.parametrize(
    ("pattern", "words", "message"),
    [
        ("no blank", {}, "nothing to fill in.*Add '#'"),
        ("", {}, "nothing to fill in"),
        (r"a\n#", {}, r"unknown escape \\n at position 1.*expected one of .*Write"),
        ("#\\", {}, r"unknown escape \\ at position 1"),
        (r"\}#", {}, r"unknown escape \\}"),
        ("my {city", {"city": ["Rome"]}, "brace at position 3 is not closed"),
        ("{a{b}", {"b": ["x"]}, "brace at position 0 is not closed"),
        ("{city}", {}, r"no word list for {city} at position 0; .*lists: none\. Pass city=\[...\]"),
        ("{city}", {"town": ["x"]}, "no word list for {city}.*the given word lists: town"),
        ("{}#", {}, "no word list for {}.*Use a name such as {city}"),
        ("{name}#", {}, "no word list for {name}.*Use a name such as {city}"),
        ("#", {"city": ["Rome"]}, "city is a word list that the pattern '#' does not use.*leave out"),
        ("{city}", {"city": []}, r"city is \[\]; expected a list of different strings .*at least one entry"),
        ("{city}", {"city": ["Rome", 7]}, r"city\[1\] is 7, of type int; expected a string\..*str\(\)"),
        ("{city}", {"city": ["Rome", "Oslo", "Rome"]}, r"city\[2\] is 'Rome', a duplicate of city\[0\].*Remove"),
        ("{city}", {"city": "Rome"}, "city is 'Rome', of type str; expected a list.*Make it a list"),
        ("{city}", {"city": {"Rome"}}, "city is {'Rome'}, of type set; expected a list.*Make it a list"),
        ("{city}", {"city": ["\ud800"]}, r"city\[0\].*half of a surrogate pair"),
        (7, {}, "pattern is 7; expected a string"),
        ("{name}", {"name": ["Ada"]}, r"name is \['Ada'\].*A word list needs a name other than 'name'"),
        ("{checksum}", {"checksum": ["a"]}, r"checksum is \['a'\].*a word list needs a name other than 'checksum'"),
    ],
)
def test_what_is_not_a_format(pattern: str, words: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        SecretFormat(pattern, **words)


def test_names_are_safe_as_metric_names() -> None:
    assert SecretFormat("#", name="my.pin_2-b").name == "my.pin_2-b"
    assert SecretFormat("Mein Schlüssel: ##").name == "mein-schlussel"
    with pytest.raises(FormatError, match=r"name is 'My Pin'; expected only .* For example name='my-pin'"):
        SecretFormat("#", name="My Pin")


# --- identity -----------------------------------------------------------------------------------------------


def test_formats_are_values() -> None:
    one = SecretFormat("{a} {b}", a=["x", "y"], b=["z"])
    same = SecretFormat("{a} {b}", b=("z",), a=("x", "y"))
    assert one == same
    assert hash(one) == hash(same)
    assert len({one, same}) == 1
    assert one != SecretFormat("{a} {b}", a=["y", "x"], b=["z"])
    assert SecretFormat("##") != SecretFormat("##", checksum="luhn")
    assert SecretFormat("##") != SecretFormat("##", name="other")
    assert one != "{a} {b}"


def test_formats_cannot_be_changed() -> None:
    format_ = SecretFormat("{a}", a=["x"])
    with pytest.raises(AttributeError, match="cannot be changed"):
        format_.pattern = "#"
    with pytest.raises(AttributeError, match="cannot be changed"):
        del format_.name
    with pytest.raises(TypeError):
        format_.words["a"] = ("y",)  # type: ignore[index]


def test_repr_shows_how_the_format_is_made() -> None:
    assert repr(SecretFormat("pin ##")) == "SecretFormat('pin ##')"
    many = SecretFormat("##{w}", checksum="luhn", name="n", w=list("abcdefgh"))
    assert repr(many) == (
        "SecretFormat('##{w}', checksum='luhn', name='n', w=['a', 'b', 'c', 'd', 'e', 'f', ... 2 more])"
    )
    few = SecretFormat("{w}", w=["a", "b"])
    assert eval(repr(few)) == few


@given(formats())
def test_formats_survive_pickle_copy_and_json(format_: SecretFormat) -> None:
    format_.acceptor()
    assert pickle.loads(pickle.dumps(format_)) == format_
    assert copy.deepcopy(format_) == format_
    assert SecretFormat.from_dict(json.loads(json.dumps(format_.to_dict()))) == format_


def test_from_dict_says_what_is_missing() -> None:
    assert SecretFormat.from_dict({"pattern": "a #"}) == SecretFormat("a #")
    with pytest.raises(FormatError, match="expected a dictionary with a 'pattern'"):
        SecretFormat.from_dict({"words": {}})
    with pytest.raises(FormatError, match=r"data has the keys \['colour'\]; expected pattern, words"):
        SecretFormat.from_dict({"pattern": "#", "colour": "red"})
    with pytest.raises(FormatError, match="none of them called name or checksum"):
        SecretFormat.from_dict({"pattern": "{name}", "words": {"name": ["x"]}})


# --- numbering ----------------------------------------------------------------------------------------------


@given(formats(), st.data())
def test_index_is_the_inverse_of_render(format_: SecretFormat, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, format_.size - 1))
    text = format_.render(number)
    assert text.startswith(format_.prompt)
    assert format_.fits(text)
    assert format_.index(text) == number


@given(formats())
def test_numbers_follow_the_order_of_the_choices(format_: SecretFormat) -> None:
    assume(format_.size <= 3000)
    blanks = [slot.choices for slot in format_._slots if slot.is_blank]
    texts = [format_.render(number) for number in range(format_.size)]
    rows = [
        tuple(choices.index(filling) for choices, filling in zip(blanks, format_.fillings(text), strict=True))
        for text in texts
    ]
    # The check digit depends on the others, so it is never the first difference between two rows.
    assert rows == sorted(set(rows))
    if format_.checksum is None:
        assert rows == list(product(*(range(len(choices)) for choices in blanks)))


def test_sizes_beyond_floating_point() -> None:
    huge = SecretFormat("#" * 400)
    assert huge.size == 10**400
    assert huge.bits == pytest.approx(400 * math.log2(10))
    assert huge.index(huge.render(10**399 + 7)) == 10**399 + 7
    with pytest.raises(ArgumentError, match=r"index is about 2\^1328.8; expected an integer from 0 to about 2\^1328.8"):
        huge.render(10**400)
    # Python refuses to print integers of so many digits; the message must not need that.
    with pytest.raises(ArgumentError, match="expected an integer from 0 to about"):
        SecretFormat("#" * 5000).render(-1)


@pytest.mark.parametrize("number", [-1, 100, 10**40])
def test_render_names_the_range(number: int) -> None:
    with pytest.raises(ArgumentError, match=r"index is .*; expected an integer from 0 to 99"):
        SecretFormat("##").render(number)
    with pytest.raises(IndexError):
        SecretFormat("##").render(number)


def test_render_takes_integers_only() -> None:
    assert SecretFormat("##").render(np.int64(7)) == "07"  # type: ignore[arg-type]
    for wrong in (1.0, "1", None, True):
        with pytest.raises(ArgumentError, match=r"index is .*; expected an integer"):
            SecretFormat("##").render(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Pin 12-a", "position 0 is an upper-case letter, where 'p' was expected"),
        ("pin x2-a", r"position 4 is a lower-case letter, where a digit \(0-9\) was expected"),
        ("pin 12+a", "position 6 is '\\+', where '-' was expected"),
        ("pin 12-A", r"position 7 is an upper-case letter, where a lower-case letter \(a-z\) was expected"),
        ("pin 12-", r"ends too early, after 7 characters, where a lower-case letter \(a-z\) was expected"),
        ("", "ends too early, after 0 characters, where 'p' was expected"),
        ("pin 12-ab", r"goes on too long: the secret is complete before position 8\."),
        ("pin ٣2-a", "position 4 is a character that is not ASCII, where a digit"),
        (7, "text is 7, of type int; expected a string"),
    ],
)
def test_index_names_the_first_place_that_does_not_fit(text: str, message: str) -> None:
    format_ = SecretFormat("pin ##-?")
    with pytest.raises(SecretError, match=f"{message}.*Give a text of the format 'pin ##-\\?'"):
        format_.index(text)
    with pytest.raises(SecretError, match=message):
        format_.fillings(text)
    assert not format_.fits(text)


def test_index_names_all_that_could_follow() -> None:
    format_ = SecretFormat("{animal}", animal=["cat", "cats", "cow"])
    with pytest.raises(SecretError, match="position 1 is a lower-case letter, where 'a', or 'o' was expected"):
        format_.index("cxt")
    many = SecretFormat("{w}", w=[chr(letter) for letter in range(0x4E00, 0x4E00 + 50)])
    with pytest.raises(SecretError, match="or one of 38 more characters was expected"):
        many.index("x")


def test_what_could_follow_is_not_told_if_it_tells_what_stands_before_it() -> None:
    format_ = SecretFormat("{animal} ##", animal=["cat", "cats", "cow"])
    with pytest.raises(SecretError, match="position 3 is '!', where another character was expected"):
        format_.index("cat! 12")
    with pytest.raises(SecretError, match="position 3 is '!', where another character was expected"):
        format_.index("cow! 12")


@pytest.mark.parametrize(
    "text", ["my ssn is 536-90-439", "my ssn is 536-90-43991", "my ssn is 536 90 4399", "536-90-4399"]
)
@pytest.mark.parametrize("make", [SecretFormat, lambda pattern: SecretFormat.regex(pattern.replace("#", "[0-9]"))])
def test_a_text_that_is_nearly_a_secret_is_not_quoted(make: Callable[[str], SecretFormat], text: str) -> None:
    format_ = make("my ssn is ###-##-####")
    for call in (format_.index, format_.fillings, lambda given: Canary("one", given, format_, 4)):
        with pytest.raises(SecretError) as caught:
            call(text)
        assert not re.search("536|90|439", str(caught.value))
        assert caught.value.__cause__ is None


# --- the checksum -------------------------------------------------------------------------------------------


def luhn_is_valid(digits: str) -> bool:
    """The textbook rule, written another way than in the library."""
    total = 0
    for place, character in enumerate(reversed(digits)):
        digit = int(character) * (1 + place % 2)
        total += sum(map(int, str(digit)))
    return total % 10 == 0


def test_the_last_digit_is_determined_by_the_others() -> None:
    format_ = SecretFormat("7: ##{w}#-#", checksum="luhn", w=["", "3a"])
    texts = [format_.render(number) for number in range(format_.size)]
    assert format_.size == 2 * 10**3
    assert len(set(texts)) == format_.size
    for text in texts:
        digits = [filling for filling in format_.fillings(text) if len(filling) == 1]
        assert luhn_is_valid("".join(digits)), "literals and word lists do not count"
    every = ["".join(f) for f in product("0123456789", repeat=4)]
    fitting = {digits for digits in every if format_.fits(f"7: {digits[:3]}-{digits[3]}")}
    assert fitting == {digits for digits in every if luhn_is_valid(digits)}


def test_a_wrong_check_digit_is_not_told_the_right_one() -> None:
    with pytest.raises(SecretError, match="position 10 is a digit, where another digit was expected"):
        SecretFormat("#" * 11, checksum="luhn").index("79927398714")
    with pytest.raises(SecretError, match="ends too early, after 10 characters, where another digit was expected"):
        SecretFormat("#" * 11, checksum="luhn").index("7992739871")


@pytest.mark.parametrize("pattern", ["#", "?#", "{w}"])
def test_a_checksum_needs_two_digits(pattern: str) -> None:
    words: dict[str, Any] = {"w": ["1"]} if "w" in pattern else {}
    with pytest.raises(FormatError, match=r"checksum is 'luhn', and the pattern has . '#'; expected at least two"):
        SecretFormat(pattern, checksum="luhn", **words)
    with pytest.raises(FormatError, match="checksum is 'crc'; expected None or 'luhn'"):
        SecretFormat("##", checksum="crc")


# --- covering -----------------------------------------------------------------------------------------------


@given(formats())
def test_covering_shows_every_choice_of_every_blank(format_: SecretFormat) -> None:
    texts = format_.covering()
    blanks = [slot for slot in format_._slots if slot.is_blank]
    for slot, seen in zip(blanks, zip(*map(format_.fillings, texts), strict=True), strict=True):
        assert set(seen) == set(slot.choices)
    # The check digit may need up to nine more.
    assert len(texts) <= max(len(slot.choices) for slot in blanks) + (9 if format_.checksum else 0)
