"""`Finding`: a secret in a text, and the format in which its exposure can be measured."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from lightning_exposure.secrets.formats.format import SecretFormat
from lightning_exposure.secrets.formats.pattern import escape
from lightning_exposure.secrets.masking import masked_repr

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_BY_LETTERS_AND_DIGITS = ("ssn", "credit-card", "iban", "phone", "address")
_MONTH = re.compile("|".join(MONTHS))


@dataclass(frozen=True)
class Finding:
    """A secret in a text.

    Attributes:
        format: What it is: "ssn", "credit-card", "iban", "phone", "email", "date-of-birth", "address", "api-key",
            "password", or the name of a format of your own.
        text: The secret itself.
        start: Where it begins in the text that was scanned.
        end: Where it ends.
        line: The number of the line that it begins in, from 1.
        prompt: What comes before it: the words before it in its line, or behind a line break those before that; no
            other secret is a part of it.
        occurrences: How often the same secret occurs in the text that was scanned, in whatever spelling.
    """

    format: str
    text: str
    start: int
    end: int
    line: int
    prompt: str
    occurrences: int = 1
    _given: SecretFormat | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """Without the secret, nor what comes before it."""
        return masked_repr(self, "text", "prompt")

    @property
    def secret(self) -> str:
        """The prompt and the secret: a text of `secret_format()`."""
        return self.prompt + self.text

    @property
    def same(self) -> str:
        """What all writings of the same secret have in common: with the kind, it tells whether two are the same.

        >>> Finding("ssn", "536-90-4399", 0, 11, 1, "").same == Finding("ssn", "536 90 4399", 0, 11, 1, "").same
        True
        """
        if self.format in _BY_LETTERS_AND_DIGITS:
            return re.sub(r"[^a-z0-9]", "", self.text.lower())
        return self.text.lower() if self.format == "email" else self.text.strip()

    @property
    def given_format(self) -> SecretFormat | None:
        """The format of your own that it fits; None: it is of a built-in kind."""
        return self._given

    def secret_format(self) -> SecretFormat:
        """All the secrets that look like this one, behind the same prompt.

        A digit becomes any digit, a letter any of its case, and what holds them together stays; a card number keeps
        its check digit, an address of mail its domain, a key what keys of its kind begin with. A format of your own is
        returned as it is.

        Example:
            >>> finding = Finding("ssn", "536-90-4399", 10, 21, 1, "my ssn is ")
            >>> finding.secret_format().pattern
            'my ssn is ###-##-####'
            >>> finding.secret_format().fits(finding.secret)
            True
        """
        if self._given is not None:
            return self._given
        fixed, blank, behind = self.parts()
        if self.format == "date-of-birth" and _MONTH.search(blank):
            pattern = escape(self.prompt) + _MONTH.sub("{month}", re.sub("[0-9]", "#", escape(blank)))
            return SecretFormat(pattern, name=self.format, month=MONTHS)
        if blank.isascii() and not re.search("[A-Z]", blank) and self.format not in ("api-key", "address"):
            filled = re.sub("[a-z]", "?", re.sub("[0-9]", "#", escape(blank)))
            checksum = "luhn" if self.format == "credit-card" else None
            pattern = escape(self.prompt + fixed) + filled + escape(behind)
            return SecretFormat(pattern, name=self.format, checksum=checksum)
        classes = "".join(self._class(character) for character in blank)
        expression = re.escape(self.prompt + fixed) + classes + re.escape(behind)
        return SecretFormat.regex(expression, name=self.format)

    def parts(self) -> tuple[str, str, str]:
        """What stays before the blank, the blank, and what stays behind it."""
        if self.format == "email":
            local, _, domain = self.text.partition("@")
            return "", local, f"@{domain}"
        if self.format == "api-key":
            kind = re.match(r"(?:[A-Za-z]{2,10}[-_])+|AKIA|ASIA|AIza|SG\.", self.text)
            begin = kind.end() if kind is not None and kind.end() < len(self.text) else 0
            return self.text[:begin], self.text[begin:], ""
        if self.format == "iban":
            return self.text[:2], self.text[2:], ""
        if self.format == "address":
            # The house number and the name of the street; what kind of street it is, and the city, are no secret.
            street = self.text.partition(",")[0]
            name = street.rpartition(" ")[0]
            return "", name, self.text[len(name) :]
        return "", self.text, ""

    def _class(self, character: str) -> str:
        if self.format == "api-key" and character.isascii() and character.isalnum():
            return "[A-Za-z0-9]"
        for letters in ("0-9", "a-z", "A-Z"):
            if re.fullmatch(f"[{letters}]", character):
                return f"[{letters}]"
        return re.escape(character)
