"""The named formats: what they look like, how many secrets they have, and prompts of your own."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightning_exposure.errors import ArgumentError
from lightning_exposure.secrets import NAMED_FORMATS, CanarySet, SecretFormat
from lightning_exposure.secrets.formats import named
from lightning_exposure.secrets.formats.named import _wordlists as wordlists


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


@pytest.mark.parametrize("make", NAMED_FORMATS, ids=NAMED_FORMATS.names())
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
        SecretFormat.password("8")
    with pytest.raises(ArgumentError, match=r"separator is '\.'; expected one of ' ', '-', ''"):
        SecretFormat.credit_card(separator=".")
    with pytest.raises(ArgumentError, match="prompt is None, of type NoneType; expected the text before the secret"):
        SecretFormat.ssn(prompt=None)


# --- the registry -------------------------------------------------------------------------------------------


@pytest.fixture
def badge() -> Iterator[Callable[..., SecretFormat]]:
    """A format of a user's own, registered for one test."""

    @NAMED_FORMATS.register("badge")
    def badge(prompt: str = "my badge is ") -> SecretFormat:
        """The number on a badge."""
        return SecretFormat(f"{prompt}??-###", name="badge")

    yield badge
    NAMED_FORMATS.unregister("badge")


def test_every_file_of_the_folder_is_a_named_format_of_its_name() -> None:
    folder = Path(named.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if not path.name.startswith("_")}
    assert files == set(NAMED_FORMATS.names()) >= {"ssn", "credit_card", "phone", "pin", "password", "address"}


def test_a_registered_format_is_a_constructor_like_ours(badge: Callable[..., SecretFormat]) -> None:
    assert SecretFormat.badge is badge
    assert "badge" in dir(SecretFormat)
    assert SecretFormat.badge("b ").render(27_001) == "b bb-001"
    canaries = CanarySet.draw(SecretFormat.badge(), repetitions=[4], seed=0)
    assert canaries[0].id == "badge-4x"
    assert CanarySet.from_dict(canaries.to_dict()) == canaries
    assert pickle.loads(pickle.dumps(canaries)) == canaries, "what is kept of a format does not need the registry"


def test_a_name_is_taken_only_once(badge: Callable[..., SecretFormat]) -> None:
    with pytest.raises(ArgumentError, match=r"is 'badge'; expected a new name"):
        NAMED_FORMATS.register("badge")(badge)


def test_what_is_not_registered_is_no_attribute() -> None:
    assert not hasattr(SecretFormat, "badge")
    with pytest.raises(AttributeError, match=r"no attribute 'social'; expected .*address, credit_card, .*ssn\.$"):
        _ = SecretFormat.social
    with pytest.raises(ArgumentError, match=r"'social'.*expected one of 'address', 'credit_card'"):
        NAMED_FORMATS.get("social")


def test_a_format_itself_does_not_have_the_constructors() -> None:
    assert not hasattr(SecretFormat.ssn(), "ssn")
