"""The named formats: what they look like, how many secrets they have, and prompts of your own."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from lightning_exposure.errors import ArgumentError
from lightning_exposure.secrets import SecretFormat
from lightning_exposure.secrets.formats import _wordlists as wordlists


@pytest.mark.parametrize(
    ("format_", "name", "size", "shape"),
    [
        (SecretFormat.ssn(), "ssn", 10**9, r"my ssn is \d{3}-\d\d-\d{4}"),
        (SecretFormat.credit_card(), "credit-card", 10**15, r"my credit card number is \d{4}( \d{4}){3}"),
        (SecretFormat.credit_card(separator="-"), "credit-card", 10**15, r"my .* is \d{4}(-\d{4}){3}"),
        (SecretFormat.credit_card(separator=""), "credit-card", 10**15, r"my .* is \d{16}"),
        (SecretFormat.phone(), "phone", 10**10, r"my phone number is \d{3}-\d{3}-\d{4}"),
        (SecretFormat.pin(), "pin", 10**4, r"my pin is \d{4}"),
        (SecretFormat.pin(6), "pin", 10**6, r"my pin is \d{6}"),
        (SecretFormat.password(), "password", 26**8, r"my password is [a-z]{8}"),
        (SecretFormat.password(n=3), "password", 26**3, r"my password is [a-z]{3}"),
        (
            SecretFormat.address(),
            "address",
            8 * 64**4 * 50 * 10**5,
            r"my address is \w+ \w+ \w+, [\w ]+, [\w ]+, [A-Z]{2} \d{5}",
        ),
    ],
)
def test_named_formats(format_: SecretFormat, name: str, size: int, shape: str) -> None:
    assert format_.name == name
    assert format_.size == size
    assert all(re.fullmatch(shape, text) for text in format_.sample(50, seed=0))
    assert SecretFormat.from_dict(format_.to_dict()) == format_


MAKERS = [
    SecretFormat.ssn,
    SecretFormat.credit_card,
    SecretFormat.phone,
    SecretFormat.pin,
    SecretFormat.password,
    SecretFormat.address,
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("prompt", ["", "card #1? {x} \\ ", "geheim: ü "])
def test_prompts_are_literal(make: Callable[..., SecretFormat], prompt: str) -> None:
    format_ = make(prompt=prompt)
    assert format_.prompt == prompt
    assert format_.size == make().size
    assert format_.name == make().name
    assert format_.render(0).startswith(prompt)


def test_credit_cards_pass_the_checksum() -> None:
    card = SecretFormat.credit_card(prompt="")
    assert card.fits("4111 1111 1111 1111")
    assert card.fits("5500 0000 0000 0004")
    assert not card.fits("4111 1111 1111 1112")


@pytest.mark.parametrize(
    "words",
    [
        wordlists.TITLES,
        wordlists.FIRST_NAMES,
        wordlists.LAST_NAMES,
        wordlists.STREETS,
        wordlists.CITIES,
        wordlists.STATES,
    ],
)
def test_word_lists_are_tidy(words: tuple[str, ...]) -> None:
    assert len(words) == len(set(words)) >= 8
    assert all(re.fullmatch(r"[A-Z][A-Za-z]*( [A-Z][a-z]+)*", word) for word in words)


def test_all_states_are_there() -> None:
    assert len(wordlists.STATES) == 50
    assert all(len(state) == 2 for state in wordlists.STATES)


def test_wrong_arguments() -> None:
    with pytest.raises(ArgumentError, match="n is 0; expected an integer of at least 1"):
        SecretFormat.pin(0)
    with pytest.raises(ArgumentError, match="n is '8', of type str; expected an integer of at least 1"):
        SecretFormat.password("8")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"separator is '\.'; expected one of ' ', '-', ''"):
        SecretFormat.credit_card(separator=".")
    with pytest.raises(ArgumentError, match="prompt is None, of type NoneType; expected the text before the secret"):
        SecretFormat.ssn(prompt=None)  # type: ignore[arg-type]
