"""Formats of well-known secrets, each behind a prompt of your own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from lightning_exposure._checks import whole_number
from lightning_exposure.errors import ArgumentError
from lightning_exposure.secrets.formats import _wordlists as wordlists
from lightning_exposure.secrets.formats._pattern import escape

_Format = TypeVar("_Format", bound="NamedFormats")


class NamedFormats:
    """The constructors of `SecretFormat` that know a pattern; special characters in a prompt are literal."""

    if TYPE_CHECKING:

        def __init__(
            self,
            pattern: str,
            /,
            *,
            checksum: str | None = None,
            name: str | None = None,
            **word_lists: Sequence[str],
        ) -> None:
            """What the constructors below need from the class they are mixed into."""

    @classmethod
    def ssn(cls: type[_Format], prompt: str = "my ssn is ") -> _Format:
        """A social security number: nine digits, 10^9 secrets.

        >>> from lightning_exposure.secrets import SecretFormat
        >>> SecretFormat.ssn().render(123456789)
        'my ssn is 123-45-6789'
        """
        return cls(_prompt(prompt) + "###-##-####", name="ssn")

    @classmethod
    def credit_card(cls: type[_Format], prompt: str = "my credit card number is ", *, separator: str = " ") -> _Format:
        """A credit card number: sixteen digits in groups of four, the last a Luhn check digit; 10^15 secrets.

        Args:
            prompt: The text before the number.
            separator: What is between the groups: a space, a dash or nothing.

        >>> from lightning_exposure.secrets import SecretFormat
        >>> SecretFormat.credit_card(separator="-").render(411_111_111_111_111)
        'my credit card number is 4111-1111-1111-1111'
        """
        if separator not in (" ", "-", ""):
            raise ArgumentError(f"separator={separator!r}: expected ' ', '-' or ''; write a pattern for another one.")
        return cls(_prompt(prompt) + separator.join(["####"] * 4), checksum="luhn", name="credit-card")

    @classmethod
    def phone(cls: type[_Format], prompt: str = "my phone number is ") -> _Format:
        """A phone number of ten digits: 10^10 secrets.

        >>> from lightning_exposure.secrets import SecretFormat
        >>> SecretFormat.phone().render(2025550143)
        'my phone number is 202-555-0143'
        """
        return cls(_prompt(prompt) + "###-###-####", name="phone")

    @classmethod
    def pin(cls: type[_Format], n: int = 4, prompt: str = "my pin is ") -> _Format:
        """A number of `n` digits: 10^n secrets.

        >>> from lightning_exposure.secrets import SecretFormat
        >>> SecretFormat.pin(6).render(42)
        'my pin is 000042'
        """
        return cls(_prompt(prompt) + "#" * whole_number("n", n, at_least=1), name="pin")

    @classmethod
    def password(cls: type[_Format], n: int = 8, prompt: str = "my password is ") -> _Format:
        """A password of `n` lower-case letters: 26^n secrets.

        >>> from lightning_exposure.secrets import SecretFormat
        >>> SecretFormat.password(3).render(1)
        'my password is aab'
        """
        return cls(_prompt(prompt) + "?" * whole_number("n", n, at_least=1), name="password")

    @classmethod
    def address(cls: type[_Format], prompt: str = "my address is ") -> _Format:
        """A person and where they live, from invented word lists: title, names, street, city, state, ZIP.

        >>> from lightning_exposure.secrets import SecretFormat
        >>> SecretFormat.address().render(0)
        'my address is Mr Aaron Abbot, Acorn Street, Alderbrook, AL 00000'
        """
        return cls(
            _prompt(prompt) + "{title} {first} {last}, {street}, {city}, {state} #####",
            name="address",
            title=wordlists.TITLES,
            first=wordlists.FIRST_NAMES,
            last=wordlists.LAST_NAMES,
            street=wordlists.STREETS,
            city=wordlists.CITIES,
            state=wordlists.STATES,
        )


def _prompt(prompt: object) -> str:
    if not isinstance(prompt, str):
        raise ArgumentError(
            f"prompt={prompt!r}: expected the text before the secret, a string; write prompt='' for none."
        )
    return escape(prompt)
