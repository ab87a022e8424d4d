"""Where pseudonyms come from: for each kind of secret the numbers, addresses and words that are never issued.

A made-up number can be a real person's. So, where there are such ranges, pseudonyms are taken from those that nobody is
given; where there are none, from all texts that look like the secret.

| kind | pseudonyms | rests on |
| --- | --- | --- |
| ssn | area numbers 000 and 666 | the Social Security Administration never assigns them |
| credit-card | numbers that begin with 0, with the right check digit | no issuer of payment cards begins with 0 |
| iban | country ZZ, with the right check digits | ISO 3166 leaves it to users; no bank is there |
| phone | in the North American plan 555-0100 to 555-0199; elsewhere numbers that the plan of the country does not have | set aside for fiction; libphonenumber |
| email | domains that end with .test or .invalid | RFC 2606 |
| address | street and city of random letters, ZIP codes from 00000 to 00099 | the letters make no words; ZIP codes begin at 00501 |
| date-of-birth, api-key, password, formats of one's own | whatever has the same shape, but never the secret itself | there is no range that is never issued |
"""  # noqa: E501

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from lightning_exposure.defences.redacting._dates import days_like
from lightning_exposure.defences.redacting._shapes import (
    DIGITS,
    Shape,
    any_sign,
    letters_and_digits,
    plain,
    spelled_like,
)
from lightning_exposure.secrets.scanner import Finding

_COUNTRY = "zz"
_RESERVED = (".invalid", ".test")
_FICTION = "55501"
_STREETS = frozenset(
    re.findall(
        r"\w+",
        "street st avenue ave road rd boulevard blvd lane ln terrace parkway pkwy highway hwy drive dr court ct place "
        "pl square sq way circle cir n s e w ne nw se sw apt apartment suite unit ste",
    )
)
"""Words of an address that tell nobody's home."""


@dataclass(frozen=True)
class Range:
    """The pseudonyms for a secret, numbered.

    Attributes:
        name: The same for all secrets that share them.
        size: How many there are.
        text_of: The pseudonym of a number, in the spelling of the secret.
        same: What all spellings of the secret have in common.
        own: The number of the secret itself, if it is one of them; then they are a permutation of each other.
        accepts: Whether a pseudonym will do; None: all do.
    """

    name: str
    size: int
    text_of: Callable[[int], str]
    same: str
    own: int | None = None
    accepts: Callable[[str], bool] | None = None


def range_for(finding: Finding, region: str) -> Range | None:
    """The pseudonyms for a secret; None: it is nobody's, because it is from a range that is never issued.

    Args:
        finding: The secret.
        region: The country of phone numbers without one.
    """
    if finding.given_format is not None:
        return _of_own_format(finding)
    make, looks = _KINDS.get(finding.format, (_of_shape, _ANY))
    # A scanner of somebody else's may call something an SSN that has no nine digits.
    return (make if looks.fullmatch(plain(finding.text)) else _of_shape)(finding, region)


# ---- ranges that are never issued -------------------------------------------------------------------------------


def _ssn(finding: Finding, region: str) -> Range | None:
    same = plain(finding.text)
    if same[:3] in ("000", "666"):
        return None

    def text_of(number: int) -> str:
        return spelled_like(("000", "666")[number // 10**6] + f"{number % 10**6:06d}", finding.text)

    return Range("ssn", 2 * 10**6, text_of, same)


def _card(finding: Finding, region: str) -> Range | None:
    same = plain(finding.text)
    if same.startswith("0"):
        return None
    free = len(same) - 2

    def text_of(number: int) -> str:
        payload = f"0{number:0{free}d}"
        return spelled_like(payload + _luhn(payload), finding.text)

    return Range(f"credit-card {len(same)}", 10**free, text_of, same)


def _luhn(payload: str) -> str:
    """The digit that makes a number pass the check of cards."""
    doubled = [int(digit) * (2 if place % 2 == 0 else 1) for place, digit in enumerate(reversed(payload))]
    return str(-sum(value // 10 + value % 10 for value in doubled) % 10)


def _iban(finding: Finding, region: str) -> Range | None:
    same = plain(finding.text)
    if same.startswith(_COUNTRY):
        return None
    shape = Shape.of(same[4:])

    def text_of(number: int) -> str:
        account = shape.text_of(number)
        check = 98 - int("".join(str(int(character, 36)) for character in f"{account}{_COUNTRY}00")) % 97
        return spelled_like(f"{_COUNTRY}{check:02d}{account}", finding.text)

    return Range(f"iban {shape.name}", shape.size, text_of, same)


def _phone(finding: Finding, region: str) -> Range | None:
    import phonenumbers

    digits = plain(finding.text)
    try:
        parsed = phonenumbers.parse(finding.text, region)
    except phonenumbers.NumberParseException:
        return _of_shape(finding)
    national = phonenumbers.national_significant_number(parsed)
    if not digits.endswith(national):
        return _of_shape(finding)
    same, before = f"+{parsed.country_code} {national}", digits[: len(digits) - len(national)]
    if parsed.country_code == 1:
        areas = _areas()
        if national[3:8] == _FICTION and national[:3] in areas:
            return None

        def fictional(number: int) -> str:
            area, last = divmod(number, 100)
            return spelled_like(f"{before}{areas[area]}{_FICTION}{last:02d}", finding.text)

        return Range("phone +1", 100 * len(areas), fictional, same)

    def text_of(number: int) -> str:
        return spelled_like(f"{before}{number:0{len(national)}d}", finding.text)

    def is_nobodys(text: str) -> bool:
        try:
            return not phonenumbers.is_valid_number(phonenumbers.parse(text, region))
        except phonenumbers.NumberParseException:
            return True

    name = f"phone +{parsed.country_code} {len(national)}"
    return Range(name, 10 ** len(national), text_of, same, accepts=is_nobodys)


@lru_cache(maxsize=1)
def _areas() -> list[str]:
    """Area codes of places in the North American plan; those for services have no numbers set aside for fiction.

    >>> "212" in _areas(), "800" in _areas(), len(_areas())
    (True, False, 630)
    """
    areas = [f"{first}{middle}{last}" for first in range(2, 10) for middle in range(9) for last in range(10)]
    return [area for area in areas if area[1] != area[2] and area[:2] not in ("52", "88")]


def _email(finding: Finding, region: str) -> Range | None:
    same = finding.text.lower()
    local, at, domain = same.partition("@")
    if not at:
        return _of_shape(finding)
    if re.search(r"(?:\.test|\.invalid|\.example|(?:^|\.)example\.(?:com|net|org))$", domain):
        return None
    suffix = next((end for end in _RESERVED if len(domain) > len(end) + 1), _RESERVED[-1])
    label = domain[: max(0, len(domain) - len(suffix))] or "x"
    last = label[-1] if label[-1].isalnum() else "x"  # a dot or a hyphen may not stand before the next dot
    shape = Shape.of(local + label[:-1] + last)

    def text_of(number: int) -> str:
        filled = shape.text_of(number)
        text = f"{filled[: len(local)]}@{filled[len(local) :]}{suffix}"
        return "".join(
            new.upper() if place < len(finding.text) and finding.text[place].isupper() else new
            for place, new in enumerate(text)
        )

    return Range(f"email {len(local)} {shape.name}", shape.size, text_of, same)


def _address(finding: Finding, region: str) -> Range | None:
    text = finding.text
    zip_code = re.search(r"\d{5}(?=(?:-\d{4})?$)", text)
    fixed = "" if zip_code is None else "000"
    alphabets = [letters_and_digits(character.lower()) if character.isalnum() else character for character in text]
    for word in re.finditer(r"[^\W\d_]+\.?", text):
        is_state = re.fullmatch("[A-Z]{2}", word[0]) and zip_code is not None and word.end() + 1 == zip_code.start()
        if word[0].rstrip(".").lower() in _STREETS or is_state:
            alphabets[word.start() : word.end()] = word[0].lower()
    for number in re.finditer(r"\d+", text):
        alphabets[number.start()] = DIGITS[1:]
    if zip_code is not None:
        alphabets[zip_code.start() : zip_code.end()] = [*fixed, DIGITS, DIGITS]
    letters = [alphabet for alphabet, old in zip(alphabets, text, strict=True) if old.isalnum()]
    shape = Shape(letters)

    def text_of(number: int) -> str:
        return spelled_like(shape.text_of(number), text)

    return Range(f"address {shape.name}", shape.size, text_of, finding.same)


# ---- ranges of the secret's own kind ----------------------------------------------------------------------------


def _birth(finding: Finding, region: str) -> Range:
    days = days_like(finding.text)
    if days is None:
        return _of_shape(finding)
    # The name of a list is its first day: no two of them begin with the same one and go on differently.
    name = f"date-of-birth {days[0]} {days[-1]} {len(days)}"
    return Range(name, len(days), days.__getitem__, finding.text, _place(days, finding.text))


def _place(days: list[str], text: str) -> int:
    place = bisect_left(days, text)
    return place if place < len(days) and days[place] == text else days.index(text)


def _key(finding: Finding, region: str) -> Range:
    fixed, blank, behind = finding.parts()
    shape = Shape.of(blank)
    name = f"api-key {fixed} {shape.name}"
    return Range(name, shape.size, lambda number: fixed + shape.text_of(number) + behind, finding.text,
                 shape.number_of(blank))  # fmt: skip


def _of_shape(finding: Finding, region: str = "") -> Range:
    """Any text of the same shape; in a password signs are no separators but a part of it."""
    shape = Shape.of(finding.text, any_sign if finding.format == "password" else letters_and_digits)
    name = f"{finding.format} {shape.name}"
    return Range(name, shape.size, shape.text_of, finding.text, shape.number_of(finding.text))


def _of_own_format(finding: Finding) -> Range:
    format_ = finding.given_format
    assert format_ is not None
    begin = len(format_.prompt)
    own = format_.index(format_.prompt + finding.text)
    return Range(f"format {format_!r}", format_.size, lambda number: format_.render(number)[begin:], finding.text, own)


_ANY = re.compile(r".*", re.DOTALL)
_KINDS: dict[str, tuple[Callable[[Finding, str], Range | None], re.Pattern[str]]] = {
    "ssn": (_ssn, re.compile("[0-9]{9}")),
    "credit-card": (_card, re.compile("[0-9]{8,}")),
    "iban": (_iban, re.compile("[a-z]{2}[0-9]{2}[a-z0-9]+")),
    "phone": (_phone, re.compile("[0-9]+")),
    "email": (_email, _ANY),
    "address": (_address, _ANY),
    "date-of-birth": (_birth, _ANY),
    "api-key": (_key, _ANY),
    "password": (_of_shape, _ANY),
}
"""Each kind with what its letters and digits look like."""
