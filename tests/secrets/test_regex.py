"""Formats of regular expressions: any finite regular language, counted on its automaton."""

from __future__ import annotations

import itertools
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_exposure import CanarySet, SecretFormat
from lightning_exposure.errors import FormatError, SecretError
from lightning_exposure.secrets import TiedFormats
from lightning_exposure.secrets.formats._counting import Counting

ALPHABET = "ab1-"


def matching(expression: str, alphabet: str = ALPHABET, longest: int = 6) -> list[str]:
    """The slow and obvious reference: every short text, asked of Python's own `re`; in alphabetical order."""
    texts = ("".join(text) for n in range(longest + 1) for text in itertools.product(alphabet, repeat=n))
    return sorted(text for text in texts if re.fullmatch(expression, text))


@pytest.mark.parametrize(
    "expression",
    [
        "[ab]{1,3}",
        "a?b?1?",
        "(a|ab)(b|)",  # one text in two ways counts once
        "(ab|a1|b)-{0,2}",
        "a(b{2}|1{1,2})?",
        "^[ab]1$",
        "(?:a|b)[^\\W_c-zB-Z02-9]{1}|1-",
        "(?i:a)b|(?P<name>1)-",
        "[-a]{2}",
        "|a|b",
    ],
)
def test_everything_agrees_with_pythons_re(expression: str) -> None:
    expected = matching(expression, ALPHABET + "A")
    format = SecretFormat.regex(expression)
    assert format.size == len(expected)
    assert [format.render(i) for i in range(format.size)] == expected
    assert [format.index(text) for text in expected] == list(range(format.size))
    assert all(format.fits(text) for text in expected)
    assert not any(format.fits(text) for text in matching("[ab1-]{0,4}") if text not in expected)


def expressions() -> st.SearchStrategy[str]:
    atoms = st.sampled_from(["a", "b", "1", "-", "[ab]", "[b1]", ""])
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
            st.tuples(inner, st.sampled_from(["?", "{0,2}", "{1,2}", "{2}"])).map(lambda p: f"(?:{p[0]}){p[1]}"),
        ),
        max_leaves=5,
    )


@given(expressions())
def test_any_finite_expression(expression: str) -> None:
    expected = matching(expression, longest=5)
    if len(expected) < 2 and len(matching(expression, longest=8)) < 2:
        with pytest.raises(FormatError, match="alone"):
            SecretFormat.regex(expression)
        return
    format = SecretFormat.regex(expression)
    texts = [format.render(i) for i in range(min(format.size, 2000))]
    assert len(set(texts)) == len(texts)
    assert [text for text in texts if len(text) <= 5] == expected[: len([t for t in texts if len(t) <= 5])]
    assert all(re.fullmatch(expression, text) for text in texts)
    assert all(format.index(text) == i for i, text in enumerate(texts))


def test_patterns_are_the_same_thing_underneath() -> None:
    """The same counting on the acceptor of a pattern gives its size and its numbers."""
    for format in (SecretFormat("pin ##-?"), SecretFormat("card ### #", checksum="luhn"), SecretFormat("?#")):
        counting = Counting(format.acceptor())
        assert counting.size == format.size
        for index in {0, 1, format.size // 2, format.size - 1}:
            assert counting.text_of(index) == format.render(index)
            assert counting.number_of(format.render(index)) == index
    words = SecretFormat("{x}{y}", x=["b", "a", ""], y=["1", "22"])
    assert Counting(words.acceptor()).size == words.size


def test_prompt_name_and_size_of_a_password() -> None:
    password = SecretFormat.regex(r"password: [a-z0-9]{6,8}")
    assert password.size == 36**6 + 36**7 + 36**8
    assert (password.prompt, password.name) == ("password: ", "password")
    assert password.fillings("password: abc123x") == ("abc123x",)
    assert repr(password) == "SecretFormat.regex('password: [a-z0-9]{6,8}')"
    drawn = password.sample(2000, seed=3)
    assert len(set(drawn)) == 2000
    # A draw that is uniform on texts has 35 in 36 of them at the full length.
    assert sum(len(text) == 18 for text in drawn) / 2000 == pytest.approx(35 / 36, abs=0.02)
    assert drawn == password.sample(2000, seed=3)
    assert len({text[10] for text in drawn}) == 36


def test_a_covering_goes_over_every_edge() -> None:
    format = SecretFormat.regex("(ab|b)[1-4]{1,2}-?")
    acceptor, gone, ends = format.acceptor(), set(), set()
    for text in format.covering():
        for position, character in enumerate(text):
            gone.add((acceptor.walk(text[:position]), character))
        ends.add(acceptor.walk(text))
    assert gone == {(state, c) for state in range(len(acceptor)) for c in acceptor.edges(state)}
    assert ends == {state for state in range(len(acceptor)) if acceptor.accepting(state)}
    assert len(format.covering()) <= 8


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        (
            "pin [0-9]*",
            r"regex is 'pin \[0-9\]\*', which matches infinitely many texts.*Say how often at most: \{0,8\} for \*",
        ),
        ("pin (ab?)+", "infinitely many"),
        ("[0-9]{2,}", "infinitely many"),
        ("pin 12", "matches 'pin 12' alone: there is nothing to fill in"),
        ("[^\\s\\S]a", "matches no text at all"),
        ("pin .", r"has a place for any character but some.*Name the characters: \[a-z0-9\]"),
        ("pin [^a]", "any character but some"),
        (r"pin \D", "any character but some"),
        ("(?=a)[ab]", r"looks ahead \(\(\?=\.\.\.\).*List what may stand there instead"),
        ("(?!a)[ab]", "looks ahead"),
        ("(?<=x)[ab]", "looks back"),
        ("(?<!x)[ab]", "looks back"),
        (r"([ab])\1", r"refers to a group \(\\1\)"),
        ("(?P<x>[ab])(?P=x)", "refers to a group"),
        (r"\b[ab]", "asks for the edge of a word"),
        (r"[ab]\Z", "is an anchor"),
        ("a^[ab]", "cannot be made an automaton"),
        ("pin [", r"is no regular expression \("),
        ("[0-9]{3,2}", "is no regular expression"),
        (42, "regex is 42, of type int; expected a string"),
        ("[a\ud800]", "half of a surrogate pair"),
    ],
)
def test_what_is_no_finite_language_is_refused(expression: Any, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        SecretFormat.regex(expression)


def test_escapes_and_classes_mean_what_they_mean_to_python() -> None:
    assert SecretFormat.regex(r"[\u00e9\x41]\.").size == 2
    assert SecretFormat.regex(r"caf\u00e9 \d").render(0) == "café 0"
    assert {SecretFormat.regex(r"[][a]").render(i) for i in range(3)} == {"]", "[", "a"}
    assert SecretFormat.regex(r"[a\]][^\W\d_A-Zb-z]{1,2}").size == 4
    assert SecretFormat.regex(r"\$\^[ab]").prompt == "$^"
    with pytest.raises(FormatError, match="name"):
        SecretFormat.regex("[ab]", name="Not Safe")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "pin 1x",
            r"position 5 is a lower-case letter, where a digit \(0-9\) was expected\. Give a text of the format 'pin",
        ),
        ("pin 1", "it ends too early, after 5 characters, where a digit"),
        ("pin 1234", "it goes on too long: the secret is complete before position 7"),
        ("pin 12x", r"a digit \(0-9\) or the end of the text was expected"),
        ("", "ends too early, after 0 characters, where 'p' was expected"),
        (7, "text is 7, of type int; expected a string"),
    ],
)
def test_a_text_that_does_not_fit_is_told_where(text: Any, says: str) -> None:
    with pytest.raises(SecretError, match=says):
        SecretFormat.regex("pin [0-9]{2,3}").index(text)


def test_formats_of_expressions_are_values() -> None:
    one, same, other = (SecretFormat.regex(x) for x in ("pin [ab]", "pin [ab]", "pin [a-b]"))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other  # the same texts, but not described alike
    assert SecretFormat("pin [ab]#") != SecretFormat.regex("pin [ab]#")
    assert pickle.loads(pickle.dumps(one)) == one
    assert SecretFormat.from_dict(one.to_dict()) == one
    with pytest.raises(AttributeError, match="cannot be changed"):
        one.pattern = "x"  # type: ignore[misc]


def test_canaries_of_expressions_survive_their_manifest(tmp_path: Path) -> None:
    format = SecretFormat.regex(r"key: (sk|pk)-[a-f0-9]{8,10}", name="api-key")
    canaries = CanarySet.draw(format, repetitions=[1, 4, 0], seed=2)
    canaries.save(tmp_path / "canaries.json")
    loaded = CanarySet.load(tmp_path / "canaries.json")
    assert loaded == canaries
    assert all(canary.format == format and format.fits(canary.text) for canary in loaded)


def test_expressions_are_tied_by_the_texts_behind_their_prompts() -> None:
    tied = TiedFormats(SecretFormat.regex("my pin is [0-9]{4}"), SecretFormat("meine pin ist ####"))
    assert tied.source_of("meine pin ist 0815") == "my pin is 0815"
    words = TiedFormats(SecretFormat.regex("say [ab]{1,2}"), SecretFormat.regex("sag [ab]{1,2}"))
    assert [words.pair(i) for i in (0, 5)] == [("say a", "sag a"), ("say bb", "sag bb")]
    with pytest.raises(FormatError, match="differ in more than their prompts"):
        TiedFormats(SecretFormat.regex("say [ab]{1,2}"), SecretFormat.regex("sag [ab]{2}"))
    with pytest.raises(FormatError, match="differ in more than their prompts"):
        TiedFormats(SecretFormat.regex("say (b|a)"), SecretFormat("sag {x}", x=["b", "a"]))
