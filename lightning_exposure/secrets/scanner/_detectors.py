"""How each kind of secret is looked for: what it looks like, and what it has to pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from lightning_exposure.secrets.formats.format import SecretFormat
from lightning_exposure.secrets.scanner import _validators as valid
from lightning_exposure.secrets.scanner.finding import MONTHS

Span = tuple[int, int]

Search = Callable[[str, int, int], Iterator[Span]]
"""Where secrets begin and end, among those that begin in a part of a text."""

LONGEST = 512
"""No secret of the built-in kinds is longer."""


@dataclass(frozen=True)
class Detector:
    """A kind of secret.

    Attributes:
        name: What it is called.
        search: Finds it.
        same: What two writings of the same secret have in common.
        given: The format, if it is one of the user's.
    """

    name: str
    search: Search
    same: Callable[[str], str] = str.strip
    given: SecretFormat | None = None


def built_in(region: str) -> list[Detector]:
    """The kinds that a scanner knows, in the order in which they take what two of them find."""
    return [
        Detector("api-key", partial(_by_pattern, _API_KEY, _check_key)),
        Detector("iban", _ibans, _alphanumeric),
        Detector("credit-card", partial(_by_pattern, _CARD, _check_card), _alphanumeric),
        Detector("ssn", partial(_by_pattern, _SSN, _check_ssn), _alphanumeric),
        Detector("email", partial(_by_pattern, _EMAIL, _check_email), str.lower),
        Detector("date-of-birth", partial(_by_pattern, _BIRTH, _check_birth)),
        Detector("address", partial(_by_pattern, _ADDRESS, _check_address), _alphanumeric),
        Detector("phone", partial(_by_pattern, _PHONE, partial(_check_phone, region=region)), _alphanumeric),
        Detector("password", partial(_by_pattern, _PASSWORD, _check_password)),
    ]


def of_format(format: SecretFormat) -> Detector:
    """A format of the user's: its texts, found by its own acceptor."""
    return Detector(format.name, partial(_by_acceptor, format), given=format)


_API_KEY = re.compile(
    r"(?<![A-Za-z0-9_-])(?P<known>(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40,90}|"
    r"sk-(?:[a-z]+-)*[A-Za-z0-9_]{20,100}|[spr]k_(?:live|test)_[A-Za-z0-9]{16,64}|xox[abprs]-[A-Za-z0-9-]{10,80}|"
    r"AIza[0-9A-Za-z_-]{35}|glpat-[A-Za-z0-9_-]{20}|hf_[A-Za-z0-9]{30,40}|npm_[A-Za-z0-9]{36})(?![A-Za-z0-9])"
    r"|(?i:\b(?:api|access|secret|auth|private|client|bearer|encryption)[ _-]?(?:key|token|secret)\b|\btoken\b)"
    r"[\"']?\s{0,2}(?:is|:|=>?|was)\s{0,2}[\"']?(?P<named>[A-Za-z0-9_+/.-]{16,128})"
)
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?:[ ]?[A-Z0-9]{1,4}){3,8}(?![a-z0-9])")
_CARD = re.compile(
    r"(?<![\w.+-])(?:\d{4}([ -])\d{4}\1\d{4}\1\d{1,7}|\d{4}([ -])\d{6}\2\d{4,5}|\d{13,19})(?![\w-])(?!\.\d)"
)
_SSN = re.compile(
    r"(?<![\w.-])\d{3}([- ])\d{2}\1\d{4}(?![\w-])(?!\.\d)"
    r"|(?i:\b(?:ssn|social security(?: number| no\.?)?)\b)(?:\s{0,2}(?:is|was|:|=|\#|number|no\.?))*\s{0,2}"
    r"(?P<named>\d{9})(?![\w-])"
)
_EMAIL = re.compile(
    r"(?<![\w.+/-])[A-Za-z0-9](?:[\w.+-]{0,62}[\w+-])?@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z]{2,24}"
    r"(?![\w-])"
)
_MONTH = "|".join(f"{month}|{month[:3]}\\.?" for month in MONTHS)
_BIRTH = re.compile(
    r"(?i:\bborn\b|\bbirth[ -]?da(?:y|te)\b|\bdate of birth\b|\bd\.?o\.?b\b\.?)[^\n.!?;]{0,32}?(?<![\w/.-])"
    r"(?P<named>\d{1,2}([/.-])\d{1,2}\2\d{4}|\d{4}(?:-\d{1,2}-|/\d{1,2}/)\d{1,2}|"
    rf"(?:{_MONTH}) \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}|\d{{1,2}}(?:st|nd|rd|th)?\.? (?:of )?(?:{_MONTH}),? \d{{4}})"
    r"(?![\w-])"
)
_PLAIN_STREET = "Street|St|Avenue|Ave|Road|Rd|Boulevard|Blvd|Lane|Ln|Terrace|Parkway|Pkwy|Highway|Hwy"
_OTHER_STREET = "Drive|Dr|Court|Ct|Place|Pl|Square|Sq|Way|Circle|Cir"
_ADDRESS = re.compile(
    r"(?<![\w.,$€£-])\d{1,5}[A-Za-z]? (?:(?:N|S|E|W|NE|NW|SE|SW)\.? )?"
    r"(?:(?:[A-Z][a-z'\u2019]+|\d{1,3}(?:st|nd|rd|th)) ){1,4}?"
    rf"(?:(?P<plain>{_PLAIN_STREET})|(?P<other>{_OTHER_STREET}))\b\.?"
    r"(?P<rest>(?:,? (?:Apt|Apartment|Suite|Unit|Ste)\.? ?\w{1,6})?"
    r"(?:,\s(?:[A-Z][a-z]+ ?){1,3},? [A-Z]{2} \d{5}(?:-\d{4})?)?)"
)
_AT_HOME = re.compile(r"\b(?:address|lives?|lived|living|resid\w+|home|house|at|to|moved|located)\b[^\n]{0,20}$", re.I)
_PHONE = re.compile(
    r"(?<![\w.+/-])(?:\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){1,4}|"
    r"(?:1[-. ])?(?:\(\d{3}\) ?|\d{3}[-. ])\d{3}[-. ]\d{4}|"
    # Outside of North America: a zero first, and enough digits to be no date.
    r"(?=(?:[ ./()-]{0,2}\d){9})\(?0\d{1,4}\)?(?:[ ./-]\d{2,8}){1,4}|"
    r"(?<=: )0\d{8,11}|(?<=phone )0\d{8,11}|(?<=call )0\d{8,11}|(?<=number is )0\d{8,11}|"
    r"(?<=: )\d{10}|(?<=phone )\d{10}|(?<=call )\d{10}|(?<=number is )\d{10})(?![\w-])(?!\.\d)"
)
_PASSWORD = re.compile(
    r"(?i:\b(?:password|passwd|passphrase|passcode|pwd|pass)\b)[\"']?(?:\s{0,2}(?P<sign>:|=)\s{0,2}|\s(?P<word>is|was)\s)"
    r"[\"']?(?P<named>[^\s\"'<>,;]{4,64})"
)


def _by_pattern(
    pattern: re.Pattern[str], check: Callable[[str, re.Match[str], str], bool], text: str, begin: int, end: int
) -> Iterator[Span]:
    """What looks like a pattern and passes a check; the part called "named", where there is one."""
    for match in pattern.finditer(text, begin, min(len(text), end + LONGEST)):
        if match.start() >= end:
            return
        groups = match.groupdict()
        which = next((name for name in ("named", "known") if groups.get(name)), 0)
        start, stop = match.span(which)
        while stop > start and text[stop - 1] in ".,;:!?" and pattern in (_PASSWORD, _API_KEY):
            stop -= 1
        if check(text[start:stop], match, text[max(0, start - 40) : start]):
            yield start, stop


def _ibans(text: str, begin: int, end: int) -> Iterator[Span]:
    """IBANs; what follows one in capital letters may look like another group of it."""
    for match in _IBAN.finditer(text, begin, min(len(text), end + LONGEST)):
        if match.start() >= end:
            return
        start, stop = match.span()
        while stop - start >= 15:
            if valid.is_iban(text[start:stop]):
                yield start, stop
                break
            stop = max(text.rfind(" ", start, stop), start)


def _by_acceptor(format: SecretFormat, text: str, begin: int, end: int) -> Iterator[Span]:
    """Texts of a format that are no part of a longer word or number; the longest that fits at a place."""
    acceptor, prompt = format.acceptor(), format.prompt
    first = re.escape(prompt) if prompt else f"[{''.join(map(re.escape, acceptor.edges(acceptor.start)))}]"
    behind_prompt = acceptor.walk(prompt)
    assert behind_prompt is not None
    for match in re.compile(first).finditer(text, begin, min(len(text), end + len(prompt))):
        if match.start() >= end:
            return
        state: int | None = behind_prompt
        at = match.start() + len(prompt)
        stop = -1
        while state is not None:
            if acceptor.accepting(state) and _is_edge(text, at):
                stop = at
            state = acceptor.edges(state).get(text[at]) if at < len(text) else None
            at += 1
        if stop >= 0 and _is_edge(text, match.start()):
            yield match.start() + len(prompt), stop


def _is_edge(text: str, at: int) -> bool:
    """Whether no word or number goes over a place."""
    return not (0 < at < len(text) and text[at - 1].isalnum() and text[at].isalnum())


def _alphanumeric(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _check_key(text: str, match: re.Match[str], before: str) -> bool:
    return bool(match["known"]) or valid.is_key(text)


def _check_card(text: str, match: re.Match[str], before: str) -> bool:
    return valid.no_other_number(before) and valid.is_card(text)


def _check_ssn(text: str, match: re.Match[str], before: str) -> bool:
    return valid.no_other_number(before) and valid.is_ssn(text)


def _check_email(text: str, match: re.Match[str], before: str) -> bool:
    return ".." not in text and valid.is_email(text)


def _check_birth(text: str, match: re.Match[str], before: str) -> bool:
    return valid.is_past_date(text)


def _check_address(text: str, match: re.Match[str], before: str) -> bool:
    return bool(match["plain"]) or bool(match["rest"]) or _AT_HOME.search(before) is not None


def _check_phone(text: str, match: re.Match[str], before: str, region: str) -> bool:
    return valid.no_other_number(before) and valid.is_phone(text, region)


def _check_password(text: str, match: re.Match[str], before: str) -> bool:
    return valid.is_password(text, match["sign"] or match["word"])
