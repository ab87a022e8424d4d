"""`redact`: no secret is left, formats are kept, and a pseudonym is the same for one secret and never for two."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from typing import Any

import phonenumbers
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stdnum import iban, luhn
from stdnum.us import ssn

from lightning_exposure.defences import Pseudonyms, Redactor, redact
from lightning_exposure.defences.redacting._dates import days_like
from lightning_exposure.defences.redacting._permutation import KeyedPermutation, keyed_number
from lightning_exposure.defences.redacting._shapes import Shape, any_sign
from lightning_exposure.errors import ArgumentError, PseudonymError
from lightning_exposure.secrets import Finding, Scanner, SecretFormat

KEY = b"a key for these tests"
TEXT = (
    "my ssn is 536-90-4399, his SSN: 078 05 1121.\nCard 4111 1111 1111 1111, amex 378282246310005.\n"
    "IBAN DE89 3704 0044 0532 0130 00. Call (212) 456-7890 or +44 20 7946 0958.\n"
    "Bob.Lee@acme.com, born on 12/31/1985.\nShe lives at 742 Evergreen Terrace, Springfield, IL 62704. "
    "password: hunter2!x, token: sk-abcDEF1234567890abcdEFGH\n"
)


def pseudonymous(text: Any, scanner: Any = None) -> Any:
    return redact(text, scanner, "pseudonym", key=KEY)


# --- permutations -------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.integers(1, 40), st.binary(min_size=1, max_size=8))
def test_a_keyed_permutation_is_a_bijection(size: int, key: bytes) -> None:
    permutation = KeyedPermutation(key, size)
    images = [permutation(number) for number in range(size)]
    assert sorted(images) == list(range(size))
    assert [permutation.inverse(image) for image in images] == list(range(size))
    if size > 1:
        moved = [permutation.displaced(number) for number in range(size)]
        assert sorted(moved) == list(range(size))
        assert all(number != to for number, to in enumerate(moved))


@settings(max_examples=25)
@given(st.integers(2, 10**200), st.data())
def test_it_can_be_undone_at_any_size(size: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, size - 1))
    permutation = KeyedPermutation(KEY, size)
    assert 0 <= permutation(number) < size
    assert permutation.inverse(permutation(number)) == number
    assert 0 <= permutation.displaced(number) < size


def test_it_depends_on_every_part_of_the_key_and_leaves_no_order() -> None:
    one, other = KeyedPermutation(b"a", 1000), KeyedPermutation(b"b", 1000)
    assert sum(one(number) == other(number) for number in range(1000)) < 10  # 1 expected
    rises = sum(one(number) < one(number + 1) for number in range(999))
    assert 440 < rises < 560
    assert len({keyed_number(KEY, str(text), 10**6) for text in range(500)}) > 490


@settings(max_examples=50)
@given(st.text(max_size=12), st.data())
def test_shapes_are_numbered(text: str, data: st.DataObject) -> None:
    shape = Shape.of(text, any_sign)
    assert shape.text_of(shape.number_of(text)) == text
    number = data.draw(st.integers(0, shape.size - 1))
    other = shape.text_of(number)
    assert shape.number_of(other) == number
    assert Shape.of(other, any_sign).name == shape.name, "what a text becomes has its shape"


@pytest.mark.parametrize(
    "text", ["12/31/1985", "3/4/1985", "1985-03-12", "31.12.1985", "March 3, 1985", "3rd of Mar 1985", "12 MAY 1985"]
)
def test_days_are_days(text: str) -> None:
    days = days_like(text)
    assert days is not None
    assert text in days
    assert len(days) == len(set(days)) > 2000
    for day in days[:: len(days) // 7]:
        assert days_like(day) == days, "a day that one becomes may become it"
        assert re.sub("[A-Za-z]+", "x", re.sub(r"\d", "#", day)) == re.sub("[A-Za-z]+", "x", re.sub(r"\d", "#", text))


def test_what_is_no_day_is_not_taken_for_one() -> None:
    assert days_like("99/99/1985") is None
    assert days_like("12/31") is None


# --- ranges that are never issued ---------------------------------------------------------------------------

numbers = st.integers(0, 10**18)


@st.composite
def ssns(draw: st.DrawFn) -> str:
    area = draw(st.integers(1, 899).filter(lambda number: number != 666))
    sign = draw(st.sampled_from("- "))
    return f"{area:03d}{sign}{draw(st.integers(1, 99)):02d}{sign}{draw(st.integers(1, 9999)):04d}"


@st.composite
def cards(draw: st.DrawFn) -> str:
    payload = f"4{draw(st.integers(0, 10**14 - 1)):014d}"
    number = payload + luhn.calc_check_digit(payload)
    sign = draw(st.sampled_from(["", " ", "-"]))
    return sign.join(number[place : place + 4] for place in range(0, 16, 4))


@st.composite
def ibans(draw: st.DrawFn) -> str:
    account = f"{draw(st.integers(0, 10**18 - 1)):018d}"
    number = f"DE{iban.calc_check_digits('DE00' + account)}{account}"
    return number if draw(st.booleans()) else " ".join(number[place : place + 4] for place in range(0, 22, 4))


@st.composite
def phones(draw: st.DrawFn) -> str:
    # Numbers that exist as a whole area code: 212, Manhattan.
    exchange, line = draw(st.integers(220, 998)), draw(st.integers(0, 9999))
    return draw(st.sampled_from(["212-{}-{:04d}", "(212) {}-{:04d}", "+1 212-{}-{:04d}"])).format(exchange, line)


emails = st.from_regex(
    r"[A-Za-z][A-Za-z0-9]{0,6}(?:\.[a-z]{1,4})?@[a-z]{1,9}(?:-[a-z]{2})?\.(?:com|org|de)", fullmatch=True
)


def format_of(text: str) -> str:
    return re.sub("[A-Z]", "A", re.sub("[a-z]", "a", re.sub("[0-9]", "0", text)))


@settings(max_examples=30)
@given(st.lists(ssns(), min_size=1, max_size=5))
def test_social_security_numbers(found: list[str]) -> None:
    for old, new in zip(found, pseudonymous(found), strict=True):
        assert format_of(new) == format_of(old)
        assert new[:3] in ("000", "666")
        assert not ssn.is_valid(new.replace(" ", "-"))


@settings(max_examples=30)
@given(cards())
def test_cards(old: str) -> None:
    new = pseudonymous(old)
    assert format_of(new) == format_of(old)
    assert new.startswith("0")
    assert luhn.is_valid(re.sub(r"\D", "", new))


@settings(max_examples=30)
@given(ibans())
def test_ibans(old: str) -> None:
    new = pseudonymous(old)
    assert format_of(new) == format_of(old)
    assert new.startswith("ZZ")
    plain = new.replace(" ", "")
    assert int("".join(str(int(character, 36)) for character in plain[4:] + plain[:4])) % 97 == 1


@settings(max_examples=30)
@given(phones())
@example("+1 212-456-7890")
def test_phones_of_north_america(old: str) -> None:
    new = pseudonymous(f"call {old}")
    if new != f"call {old}":  # not every number exists
        assert format_of(new) == f"aaaa {format_of(old)}"
        assert re.sub(r"\D", "", new)[-7:-2] == "55501"
        national = phonenumbers.national_significant_number(phonenumbers.parse(new[5:], "US"))
        assert national[0] not in "01"


@pytest.mark.parametrize("region", ["GB", "DE", "FR", "IN", "BR", "AU", "JP", "NG"])
def test_phones_elsewhere_do_not_exist(region: str) -> None:
    known = phonenumbers.example_number(region)
    for style in (phonenumbers.PhoneNumberFormat.INTERNATIONAL, phonenumbers.PhoneNumberFormat.E164):
        old = phonenumbers.format_number(known, style)
        new = pseudonymous(f"call {old}")[5:]
        assert format_of(new) == format_of(old)
        assert new.startswith(f"+{known.country_code}")
        assert not phonenumbers.is_valid_number(phonenumbers.parse(new, region))


@settings(max_examples=30)
@given(emails)
def test_addresses_of_mail(old: str) -> None:
    new = pseudonymous(f"to {old} ")[3:-1]
    if new != old:
        assert new.endswith((".test", ".invalid"))
        assert len(new) == max(len(old), old.index("@") + 1 + len("x.test"))
        assert format_of(new.partition("@")[0]) == format_of(old.partition("@")[0])


def test_street_addresses() -> None:
    new = pseudonymous("She lives at 742 Evergreen Terrace, Apt 4, Springfield, IL 62704-1234 now.")
    assert re.fullmatch(
        r"She lives at [1-9]\d\d [A-Z][a-z]{8} Terrace, Apt [1-9], [A-Z][a-z]{10}, IL 000\d\d-\d{4} now\.", new
    )
    assert "Evergreen" not in new
    assert "Springfield" not in new


# --- consistent, and never the same for two ------------------------------------------------------------------


def test_spellings_of_one_secret_have_one_pseudonym() -> None:
    texts = ["my ssn is 536-90-4399", "ssn: 536 90 4399", "the ssn 536904399"]
    assert len({re.sub(r"\D", "", text) for text in pseudonymous(texts)}) == 1
    both = pseudonymous(["call (212) 456-7890", "call +1 212-456-7890", "call 212.456.7890"])
    assert len({re.sub(r"\D", "", text)[-10:] for text in both}) == 1
    one, other = pseudonymous(["Bob.Lee@acme.com is", "bob.lee@ACME.com is"])
    assert one.lower() == other.lower()
    assert one != other
    assert pseudonymous("AKIAIOSFODNN7EXAMPLE") == pseudonymous("AKIAIOSFODNN7EXAMPLE")


def test_two_secrets_never_have_one_pseudonym_even_where_there_are_few() -> None:
    # 63,000 pseudonyms for phone numbers: among 500 secrets, two hashes would meet with a chance of 86%.
    found = [f"call 212-{exchange}-{line:04d}" for exchange in range(300, 325) for line in range(0, 10_000, 500)]
    distinct = Redactor(how="pseudonym", key=KEY)
    new = [distinct(text) for text in found]
    changed = [text for text in new if "555-01" in text]
    assert len(changed) == len(found) == len(set(new))
    assert [distinct(text) for text in found] == new


def test_a_range_that_is_used_up_is_an_error() -> None:
    pseudonyms = Pseudonyms(KEY)
    kind = Finding("email", "a@b.co", 0, 6, 1, "")  # one letter before, one behind: 676 pseudonyms
    given = [f"{a}@{b}.co" for a in "abcdefghijklmnopqrstuvwxyz" for b in "abcdefghijklmnopqrstuvwxyz"]
    new = {pseudonyms.of(replace(kind, text=text)) for text in given}
    assert len(new) == 676
    with pytest.raises(PseudonymError, match=r"email has 676 secrets .*; expected no more .* \(676 at most\)"):
        pseudonyms.of(replace(kind, text="a@b.de"))


def test_formats_of_ones_own_are_permuted() -> None:
    scanner = Scanner([SecretFormat("my pin is ##")], kinds=[])
    texts = [f"my pin is {number:02d}" for number in range(100)]
    new = pseudonymous(texts, scanner)
    assert sorted(new) == texts
    assert all(old != one for old, one in zip(texts, new, strict=True))
    card = Scanner([SecretFormat("card ####-####-####-####", checksum="luhn", name="card")], kinds=[])
    assert luhn.is_valid(re.sub(r"\D", "", pseudonymous("card 4111-1111-1111-1111", card)))
    with pytest.raises(PseudonymError, match="no other text looks like"):
        pseudonymous("the word is yes", Scanner([SecretFormat("the word is {word}", word=["yes"])], kinds=[]))


@pytest.mark.parametrize("kind", ["password: {}", "born on {}", "token: {}"])
def test_kinds_without_such_a_range_never_keep_the_secret(kind: str) -> None:
    texts = {
        "password: {}": [f"tiger{number}x" for number in range(50)],
        "born on {}": [f"{month}/7/1985" for month in range(1, 10)],
        "token: {}": [f"AKIAIOSFODNN7EXAM{a}{b}E" for a in "AQZ" for b in "BXY"],
    }[kind]
    new = pseudonymous([kind.format(text) for text in texts])
    assert len(set(new)) == len(texts)
    for old, one in zip(texts, new, strict=True):
        assert format_of(one) == format_of(kind.format(old))
        assert old not in one


def test_the_key_decides() -> None:
    one, again, other = (redact(TEXT, how="pseudonym", key=key) for key in (b"one", b"one", b"two"))
    assert one == again != other
    mine = redact("my ssn is 536-90-4399", how="pseudonym")
    assert mine == redact("my ssn is 536-90-4399", how="pseudonym"), "the key of this machine stays the same"


# --- nothing is left ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["mask", "pseudonym"])
def test_no_secret_is_left(how: Any) -> None:
    found = Scanner().find(TEXT)
    assert {finding.format for finding in found} == set(Scanner().kinds)
    new = redact(TEXT, how=how, key=KEY)
    for finding in found:
        assert finding.text not in new
        assert finding.same not in re.sub("[^a-z0-9]", "", new.lower())
    assert new.count("\n") == TEXT.count("\n")
    assert "my ssn is " in new


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.text("xyz é😀\n,", max_size=9), ssns() | cards()), max_size=4), st.text("xyz ", max_size=5)
)
def test_what_stands_between_secrets_stays_where_it_is(parts: list[tuple[str, str]], end: str) -> None:
    text = "".join(f"{before} no {secret} " for before, secret in parts) + end
    new, masked = pseudonymous(text), redact(text)
    assert len(new) == len(text)
    found = Scanner().find(text)
    inside = {place for finding in found for place in range(finding.start, finding.end)}
    assert all(new[place] == text[place] for place in range(len(text)) if place not in inside)
    for finding in found:
        assert new[finding.start : finding.end] != finding.text
    for finding in reversed(found):
        text = f"{text[: finding.start]}[{finding.format}]{text[finding.end :]}"
    assert masked == text


@pytest.mark.parametrize("how", ["mask", "pseudonym"])
def test_redacting_twice(how: Any) -> None:
    issued = Scanner(kinds=["ssn", "credit-card", "iban", "phone", "email"])
    once = redact(TEXT, issued, how, key=KEY)
    assert redact(once, issued, how, key=KEY) == once, "what is never issued needs no pseudonym"
    assert redact(once, issued, how, key=b"another key") == once
    masked = redact(TEXT)
    assert redact(masked) == masked
    birth = redact("born on 12/31/1985", how="pseudonym", key=KEY)
    assert redact(birth, how="pseudonym", key=KEY) != birth, "any day may be somebody's"


def test_what_is_nobodys_is_left_alone() -> None:
    text = "call 212-555-0123 or mail nobody@example.com, a@b.test"
    assert pseudonymous(text) == text


def test_other_scripts() -> None:
    fullwidth = "4111 1111 1111 1111".translate({ord("0") + digit: 0xFF10 + digit for digit in range(10)})

    class Finder:
        def find(self, text: str) -> list[Finding]:
            return [Finding("credit-card", text, 0, len(text), 1, "")]

    new = pseudonymous(fullwidth, Finder())
    assert len(new) == len(fullwidth)
    assert all(0xFF10 <= ord(character) <= 0xFF19 or character == " " for character in new)
    secret = "\N{CYRILLIC SMALL LETTER PE}\N{CYRILLIC SMALL LETTER ZHE}tiger9\N{LATIN SMALL LETTER E WITH ACUTE}"
    (new,) = re.findall("^password: (.*)$", pseudonymous(f"password: {secret}"))
    assert new != secret
    assert [unicodedata.name(character).split()[0] for character in new[:2]] == ["CYRILLIC"] * 2
    assert [character.islower() for character in new] == [character.islower() for character in secret]


# --- scanners of others, overlaps, streams -------------------------------------------------------------------


class Spans:
    """A scanner that finds given places."""

    def __init__(self, *spans: tuple[int, int, str]) -> None:
        self.spans = spans

    def find(self, text: str) -> list[Finding]:
        return [Finding(kind, text[start:end], start, end, 1, "") for start, end, kind in self.spans]


SPANS = st.lists(
    st.tuples(st.integers(0, 19), st.integers(1, 8), st.sampled_from(["ssn", "name", "phone"])), max_size=5
)


@settings(max_examples=50)
@given(SPANS)
def test_overlapping_findings_leave_nothing_of_any(spans: list[tuple[int, int, str]]) -> None:
    text = "abcdefghij0123456789ABCDEFGH"
    found = [(start, min(len(text), start + length), kind) for start, length, kind in spans]
    covered = {place for start, end, _ in found for place in range(start, end)}
    masked = redact(text, Spans(*found))
    kept = re.sub(r"\[[a-z+]+\]", "", masked)
    assert kept == "".join(character for place, character in enumerate(text) if place not in covered)
    new = pseudonymous(text, Spans(*found))
    assert len(new) == len(text)
    assert all(new[place] == text[place] for place in range(len(text)) if place not in covered)


def test_kinds_that_nobody_knows_keep_their_shape() -> None:
    new = pseudonymous("Dr. Ann-Marie O'Neil", Spans((4, 20, "name")))
    assert format_of(new) == "Aa. Aaa-Aaaaa A'Aaaa"
    assert "Marie" not in new
    assert pseudonymous("ssn 12", Spans((4, 6, "ssn"))) != "ssn 12"


def test_findings_that_do_not_fit_the_text_are_refused() -> None:
    class Wrong:
        def find(self, text: str) -> list[Finding]:
            return [Finding("ssn", "536-90-4399", 3, 14, 1, "")]

    with pytest.raises(ArgumentError, match="scanner is 'Wrong'; expected findings whose text"):
        redact("my ssn is 536-90-4399", Wrong())


@settings(max_examples=40)
@given(st.lists(st.sampled_from(TEXT.splitlines(keepends=True)), max_size=30), st.data())
def test_a_stream_gives_what_the_whole_gives(lines: list[str], data: st.DataObject) -> None:
    text = "".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for how in ("mask", "pseudonym"):
        streamed, whole = Redactor(how=how, key=KEY), Redactor(how=how, key=KEY)  # type: ignore[arg-type]
        assert "".join(streamed.stream(parts, at_once=200)) == whole(text)
        assert streamed.counts == whole.counts


def test_a_stream_without_line_breaks() -> None:
    text = "word " * 400 + "my ssn is 536-90-4399 " + "word " * 400
    for at_once in (1, 50, 1000):
        assert "".join(Redactor().stream(text, at_once=at_once)) == redact(text)  # one character at a time
    assert "".join(Redactor().stream(["x" * 5000, "y" * 5000], at_once=10)) == "x" * 5000 + "y" * 5000


# --- arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: redact("a", how="hash"), "how is 'hash'; expected one of 'mask', 'pseudonym'"),  # type: ignore[call-overload]
        (lambda: redact(3), "text is 3, of type int; expected a text or a list of texts"),  # type: ignore[call-overload]
        (lambda: redact(["a", 3]), "text is 3, of type int; expected a string"),  # type: ignore[list-item]
        (lambda: redact("a", "ssn"), "scanner is 'ssn', of type str; expected a Scanner"),  # type: ignore[arg-type]
        (lambda: redact("a", key="secret"), "key is .*; expected bytes"),  # type: ignore[call-overload]
        (lambda: redact("a", key=b""), "key is .*; expected bytes"),
    ],
)
def test_wrong_arguments(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as raised:
        call()
    assert "secret'" not in str(raised.value)


def test_neither_key_nor_secrets_are_shown() -> None:
    redactor = Redactor(how="pseudonym", key=KEY)
    redactor(TEXT)
    assert "5017" not in repr(redactor)
    assert KEY.decode() not in f"{redactor!r} {redactor._pseudonyms!r} {redactor.settings}"
    assert redactor.settings == {"how": "pseudonym", "kinds": list(Scanner().kinds)}
