"""What tells a secret from something that only looks like one: check digits, calendars, and the words around it."""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache

from lightning_exposure.secrets.scanner.finding import MONTHS

_OTHER_NUMBERS = re.compile(
    r"\b(?:order|invoice|ticket|case|part|sku|tracking|ref(?:erence)?|isbn|issn|version|serial|model|item|article|"
    r"bug|issue|pull|commit|build|batch|receipt|confirmation|transaction|shipment|product|catalogue?|catalog|"
    r"customer|docket|policy|lot|po)\b(?:[ \t.:#=]|\b(?:no|number|num|nr|id|code|is|was|are)\b){0,16}$",
    re.IGNORECASE,
)
"""Words that say that the number right behind them is another one."""

_CARDS = (
    (re.compile(r"4\d{12}(?:\d{3}){0,2}"), "Visa"),
    (re.compile(r"(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}"), "Mastercard"),
    (re.compile(r"3[47]\d{13}"), "American Express"),
    (re.compile(r"(?:6011|65\d\d|64[4-9]\d)\d{12}"), "Discover"),
    (re.compile(r"3(?:0[0-5]|[68]\d)\d{11}"), "Diners Club"),
    (re.compile(r"35(?:2[89]|[3-8]\d)\d{12}"), "JCB"),
    (re.compile(r"62\d{14,17}"), "UnionPay"),
)
_FILES = re.compile(r"png|jpe?g|gif|svg|webp|css|js|html?|xml|json|ya?ml|txt|pdf|gz|tar|java", re.IGNORECASE)
"""How names of files end and addresses of mail do not: no country has these letters."""

_PLACEHOLDER = re.compile(
    r"^[xX*.\-_#•]+$|^(?:your|my|the|some|example|changeme|placeholder|secret|password|passwd|token|none|null|nil|"
    r"true|false|undefined|required|optional|redacted|hidden|removed|string|str|todo|tbd|n/a|input|value|"
    r"xxx+)(?:$|[_\-].*)|[<>{}()$%]|\.{3}|^(?:os|self|args|config|settings|env|process|request)\.|\*{3}|\[",
    re.IGNORECASE,
)
_ORDINARY = re.compile(
    r"a|an|and|are|as|at|be|been|by|can|for|from|has|have|he|her|his|how|if|in|incorrect|invalid|is|it|its|"
    r"known|missing|must|never|no|not|now|of|on|only|or|our|protected|reset|same|sent|set|she|short|so|strong|"
    r"such|that|the|their|then|there|they|this|to|too|unique|unknown|very|was|we|weak|what|when|which|who|will|"
    r"with|wrong|you|expired|changed|enabled|disabled|empty|correct|accepted|encrypted|hashed|stored|based|"
    r"less|free|manager|field|expected|prompt|policy|recovery|hash|please|again|case|sensitive",
    re.IGNORECASE,
)
"""What a sentence about a password goes on with."""


def no_other_number(before: str) -> bool:
    """Whether the words before a number do not say that it is an order number, a version, or the like."""
    return _OTHER_NUMBERS.search(before[-40:]) is None


def is_ssn(text: str) -> bool:
    """Whether digits are a social security number that may have been given to someone."""
    from stdnum.us import ssn

    return bool(ssn.is_valid(text.replace(" ", "-")))


def is_card(text: str) -> bool:
    """Whether digits are a card number: of an issuer, with the right length and check digit."""
    from stdnum import luhn

    digits = re.sub(r"\D", "", text)
    return any(issuer.fullmatch(digits) for issuer, _ in _CARDS) and bool(luhn.is_valid(digits))


def is_iban(text: str) -> bool:
    """Whether a text is an IBAN: its country's length, and its check digits."""
    from stdnum import iban

    return bool(iban.is_valid(text))


@lru_cache(maxsize=4096)
def is_region(region: str) -> bool:
    """Whether numbers of a country are known.

    >>> is_region("GB"), is_region("UK")
    (True, False)
    """
    import phonenumbers

    return region in phonenumbers.SUPPORTED_REGIONS


def is_phone(text: str, region: str) -> bool:
    """Whether a text is a phone number that may exist, in some country or without a country in a region."""
    import phonenumbers

    try:
        return bool(phonenumbers.is_valid_number(phonenumbers.parse(text, region)))
    except phonenumbers.NumberParseException:
        return False


def is_email(text: str) -> bool:
    """Whether a text is an address of mail, and not the name of a file (`logo@2x.png`)."""
    return _FILES.fullmatch(text.rpartition(".")[2]) is None


def is_past_date(text: str) -> bool:
    """Whether a text is a day on which someone who lives may have been born."""
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    name = re.search("|".join(month[:3] for month in MONTHS), text)
    if name is not None:
        month = [known[:3] for known in MONTHS].index(name[0]) + 1
        day, year = numbers
        candidates = [(year, month, day)]
    elif re.match(r"\d{4}", text):
        candidates = [(numbers[0], numbers[1], numbers[2])]
    else:
        first, second, year = numbers
        candidates = [(year, first, second), (year, second, first)]
    return any(_is_day(*candidate) for candidate in candidates)


def _is_day(year: int, month: int, day: int) -> bool:
    try:
        date(year, month, day)
    except ValueError:
        return False
    return 1900 <= year <= date.today().year


def is_key(text: str) -> bool:
    """Whether what stands behind "api key" is a key: long, mixed, and no placeholder."""
    mixed = bool(re.search(r"\d", text)) and bool(re.search("[A-Za-z]", text))
    return mixed and len(set(text)) >= 8 and _PLACEHOLDER.search(text) is None


def is_password(text: str, sign: str) -> bool:
    """Whether what stands behind "password is" or "password:" is a password, and not the rest of a sentence."""
    if len(text) < 4 or _PLACEHOLDER.search(text) or _ORDINARY.fullmatch(text.strip(".,;:!?'\"")):
        return False
    looks_random = bool(re.search(r"\d", text)) or bool(re.search(r"[a-z][A-Z]|[^\w\s'.-]", text))
    # Behind a colon or a sign of equality a word may be a password; in a sentence it is a word.
    return looks_random or (sign in (":", "=") and len(text) >= 6 and text.isalpha())
