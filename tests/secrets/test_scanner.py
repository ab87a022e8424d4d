"""The scanner finds secrets where they stand, and leaves alone what only looks like one."""

from __future__ import annotations

from email.utils import getaddresses
from importlib import metadata
from typing import Any

import pytest

from lightning_exposure import CharTokenizer, SecretFormat, SecretTree, measure_exposure
from lightning_exposure.errors import ArgumentError
from lightning_exposure.secrets import Scanner
from tests.toys import Recurrent, sharpened

FOUND = [
    ("ssn", "my ssn is 536-90-4399.", "536-90-4399"),
    ("ssn", "SSN: 536 90 4399", "536 90 4399"),
    ("ssn", "His social security number is 536904399, he said", "536904399"),
    ("ssn", "(536-90-4399)", "536-90-4399"),
    ("credit-card", "card 4111 1111 1111 1111 exp 12/27", "4111 1111 1111 1111"),
    ("credit-card", "pay with 5555-5555-5555-4444!", "5555-5555-5555-4444"),
    ("credit-card", "amex 378282246310005", "378282246310005"),
    ("credit-card", "amex 3782 822463 10005", "3782 822463 10005"),
    ("credit-card", "6011111111111117", "6011111111111117"),
    ("iban", "to GB82 WEST 1234 5698 7654 32 AND soon", "GB82 WEST 1234 5698 7654 32"),
    ("iban", "IBAN: DE89370400440532013000.", "DE89370400440532013000"),
    ("iban", "FR14 2004 1010 0505 0001 3M02 606", "FR14 2004 1010 0505 0001 3M02 606"),
    ("phone", "call me at 650-253-0000.", "650-253-0000"),
    ("phone", "tel. (650) 253-0000", "(650) 253-0000"),
    ("phone", "ring +44 20 7946 0958 today", "+44 20 7946 0958"),
    ("phone", "+1 650 253 0000", "+1 650 253 0000"),
    ("phone", "phone: 6502530000", "6502530000"),
    ("phone", "in this case call 650-253-0000", "650-253-0000"),
    ("ssn", "at the end of the case\nmy ssn is 536-90-4399", "536-90-4399"),
    ("email", "write to jane.doe+news@mail.example.co.uk, please", "jane.doe+news@mail.example.co.uk"),
    ("email", "<bob_99@example.com>", "bob_99@example.com"),
    ("date-of-birth", "anna was born on 07/11/1991.", "07/11/1991"),
    ("date-of-birth", "DOB: 1985-03-12", "1985-03-12"),
    ("date-of-birth", "DOB: 1985/03/12", "1985/03/12"),
    ("date-of-birth", "Her date of birth is March 12, 1985.", "March 12, 1985"),
    ("date-of-birth", "born in Berlin on 12 March 1985", "12 March 1985"),
    ("date-of-birth", "birthday: 31.12.1999", "31.12.1999"),
    ("address", "She lives at 742 Evergreen Terrace", "742 Evergreen Terrace"),
    ("address", "ship to 1600 Amphitheatre Parkway, Mountain View, CA 94043", None),
    ("address", "12 Old Mill Road.", "12 Old Mill Road."),
    ("address", "my address is 5 Abbey Court", "5 Abbey Court"),
    ("api-key", "key AKIAIOSFODNN7EXAMPLQ in the log", "AKIAIOSFODNN7EXAMPLQ"),
    ("api-key", "export OPENAI=sk-abcdefghij0123456789ABCD", "sk-abcdefghij0123456789ABCD"),
    ("api-key", "the api key is 9f86d081884c7d659a2feaa0c55ad015.", "9f86d081884c7d659a2feaa0c55ad015"),
    ("api-key", '"access_token": "ya29.a0AfH6SMBx81kd93hslQ"', "ya29.a0AfH6SMBx81kd93hslQ"),
    ("api-key", "ghp_0123456789abcdefABCDEF0123456789abcd", "ghp_0123456789abcdefABCDEF0123456789abcd"),
    ("password", "the password is hunter2.", "hunter2"),
    ("password", "Password: tr0ub4dor&3", "tr0ub4dor&3"),
    ("password", "pwd=swordfish", "swordfish"),
    ("password", "my password was OpenSesame!", "OpenSesame"),
]


@pytest.mark.parametrize(("kind", "text", "secret"), FOUND, ids=[f"{kind}: {text[:24]}" for kind, text, _ in FOUND])
def test_secrets_are_found(kind: str, text: str, secret: str | None) -> None:
    (finding,) = Scanner().find(text)
    assert finding.format == kind
    assert finding.text == (text[8:] if secret is None else secret)
    assert text[finding.start : finding.end] == finding.text
    assert (finding.line, finding.occurrences) == (1 + text.count("\n"), 1)
    assert text[: finding.start].endswith(finding.prompt)


@pytest.mark.parametrize(
    "text",
    [
        "order 536-90-4399 has shipped",  # an order number
        "invoice no. 4111 1111 1111 1111",
        "tracking number: 650-253-0000",
        "ssn 000-12-3456, 666-12-3456, 900-12-3456 and 078-05-1120 were never given to anyone",
        "part 1536-90-43990",
        "card 4111 1111 1111 1112",  # a wrong check digit
        "9999999999999995 has a check digit, and no issuer",
        "the id 20230915123456789 of the log",
        "version 1.2.3, then 10.4.12 and v2024.01.15",
        "192.168.100.200 and 10.0.0.1:8080 and 255.255.255.0",
        "on 07/11/1991 the wall was still news",  # a date, and no birthday
        "released 2024-03-12; due March 12, 2024",
        "born to run, 12 times in 1985",
        "DOB: 31/02/1990",  # no day of any year
        "date of birth: 1785-03-12",
        "GB82 WEST 1234 5698 7654 33",  # wrong check digits
        "ISBN 978-3-16-148410-0",
        "react@18.2.0 and logo@2x.png and @user and a@b",
        "the password is required, and the password was incorrect",
        "password: str = None; password=os.environ['X']; password=getpass(); password: ********",
        "your password is too short; password: <your password>",
        "api_key=YOUR_API_KEY_GOES_HERE_1 token: xxxxxxxxxxxxxxxxxxxx",
        "the token is expired; secret key: ${SECRET_KEY_FROM_VAULT_2}",
        "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
        "at 3.14159265358979 and 2,718,281,828",
        "2 First Place finishes and 10 Best Ways to Drive",
        "123-456-7890 is nobody's number",
        "call 555-1234",
        "from 1200-1300 and 2020-2021, room 12-34-5678",
        "",
        "\n\n",
    ],
)
def test_what_only_looks_like_a_secret_is_left_alone(text: str) -> None:
    assert Scanner().find(text) == []


def test_where_it_stands_and_what_stands_before_it() -> None:
    text = "Hello Ann,\n\nmy ssn is 536-90-4399\nand again:\n536 90 4399, mail ann@example.com\n"
    first, again, mail = Scanner().find(text)
    assert [finding.line for finding in (first, again, mail)] == [3, 5, 5]
    assert (first.prompt, again.prompt, mail.prompt) == ("my ssn is ", "and again:\n", ", mail ")
    assert first.occurrences == again.occurrences == 2  # in whatever writing
    assert mail.occurrences == 1
    assert (first.start, first.end) == (text.index("536"), text.index("536") + 11)


def test_a_long_prompt_begins_with_a_whole_word() -> None:
    (finding,) = Scanner().find("word " * 40 + "my ssn is 536-90-4399")
    assert finding.prompt.startswith("word ")
    assert len(finding.prompt) <= 40


@pytest.mark.parametrize(("kind", "text", "secret"), FOUND, ids=[f"{kind}: {text[:24]}" for kind, text, _ in FOUND])
def test_each_finding_is_a_format_of_its_own(kind: str, text: str, secret: str | None) -> None:
    (finding,) = Scanner().find(text)
    format = finding.secret_format()
    assert format.fits(finding.secret)
    assert format.size > 100
    assert format.prompt.startswith(finding.prompt)
    assert format.name == kind


def test_formats_of_findings() -> None:
    def of(text: str) -> SecretFormat:
        (finding,) = Scanner().find(text)
        return finding.secret_format()

    assert of("my ssn is 536-90-4399").pattern == "my ssn is ###-##-####"
    card = of("card# 4111 1111 1111 1111")
    assert (card.pattern, card.checksum, card.size) == (r"card\# #### #### #### ####", "luhn", 10**15)
    assert of("mail jo.b1@example.com").pattern == "mail ??.?#@example.com"
    assert of("born on March 12, 1985").size == 12 * 10**6
    assert of("key AKIAIOSFODNN7EXAMPLQ").size == 62**16
    assert of("to DE89370400440532013000").size == 10**20


def test_the_exposure_of_a_finding_can_be_measured() -> None:
    (finding,) = Scanner().find("she was born on 07/11/1991.")
    format = finding.secret_format()
    tokenizer = CharTokenizer.from_text("she was born on 0123456789/.")
    tree = SecretTree(sharpened(Recurrent(tokenizer.vocab_size), seed=1), format, tokenizer)
    (estimate,) = measure_exposure(tree, [finding.secret], samples=64, budget=500)
    assert 0 <= estimate.low <= estimate.high <= format.bits


def test_formats_of_your_own_are_found_with_their_prompts() -> None:
    badge = SecretFormat("badge ##-{team}", team=["red", "redder"])
    room = SecretFormat.regex(r"[A-C][0-9]{3}", name="room")
    text = "his badge 12-redder, my badge 77-red; room B123, not BB123 or B1234 or badge 1-red"
    findings = Scanner([badge, room]).find(text)
    assert [(finding.format, finding.text) for finding in findings] == [
        ("badge", "12-redder"),
        ("badge", "77-red"),
        ("room", "B123"),
    ]
    assert findings[0].secret_format() == badge
    assert findings[0].secret == "badge 12-redder"
    assert badge.fits(findings[0].secret)
    # What is the user's own is not found as something else besides.
    own = SecretFormat("ssn ###-##-####", name="theirs")
    assert [finding.format for finding in Scanner([own]).find("ssn 536-90-4399")] == ["theirs"]


def test_addresses_in_the_metadata_of_installed_packages() -> None:
    """A text that nobody wrote for this test: who wrote the packages that are installed here."""
    headers = [
        header
        for package in metadata.distributions()
        for name in ("Author-email", "Maintainer-email")
        for header in package.metadata.get_all(name) or []
    ]
    expected = {address.lower() for _, address in getaddresses(headers) if "@" in address and " " not in address}
    findings = Scanner(kinds=["email"]).find("\n".join(headers))
    assert len(expected) > 5
    found = {finding.text.lower() for finding in findings}
    # Some headers are no addresses by any standard, and their parser has its own idea of them.
    assert len(found & expected) >= 0.97 * len(expected)
    assert len(found - expected) <= 0.03 * len(expected)
    # And nothing in these lines is taken for anything else.
    assert {finding.format for finding in Scanner().find("\n".join(headers))} == {"email"}


def test_kinds_and_region_can_be_chosen() -> None:
    text = "536-90-4399 or 030 901820 or ann@example.com"
    assert [finding.format for finding in Scanner(kinds=["email"]).find(text)] == ["email"]
    german = Scanner(kinds=["phone"], region="DE").find("Telefon: 030-901-8200")
    assert [finding.text for finding in german] == ["030-901-8200"]
    assert Scanner(kinds=["phone"]).find("Telefon: 030-901-8200") == []


def test_secrets_over_the_edge_of_a_part_are_found_once() -> None:
    """A long text is scanned in parts, wherever they end."""
    line = "x" * 61 + "\n"
    for shift in range(0, 24, 3):
        padding = line * (2**18 // len(line))
        text = padding[: 2**18 - shift] + " 4111 1111 1111 1111 " + line
        (finding,) = Scanner(kinds=["credit-card"]).find(text)
        assert finding.text == "4111 1111 1111 1111"


def test_progress_goes_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    text = "nothing here\n" * 50_000
    assert Scanner().find(text, on_count=lambda done, total: seen.append((done, total))) == []
    assert seen[-1] == (len(text), len(text))
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"kinds": ["cards"]}, r"kinds is \['cards'\]; expected a list of api-key, iban"),
        ({"kinds": "ssn"}, "kinds is 'ssn'"),
        ({"region": "us"}, "region is 'us'; expected a country in two capital letters"),
        ({"formats": ["pin ####"]}, "formats has 'pin ####'; expected SecretFormats"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        Scanner(**arguments)
    with pytest.raises(ArgumentError, match="text is bytes; expected a string"):
        Scanner().find(b"536-90-4399")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("region", "text", "number"),
    [
        ("GB", "call 020 7123 4567 now", "020 7123 4567"),
        ("GB", "phone 02071234567", "02071234567"),
        ("DE", "Tel. 030 12345678", "030 12345678"),
        ("FR", "au 01 42 68 53 00", "01 42 68 53 00"),
    ],
)
def test_phone_numbers_without_a_country_are_those_of_the_region(region: str, text: str, number: str) -> None:
    assert [finding.text for finding in Scanner(region=region).find(text)] == [number]
    assert not Scanner().find(text)


def test_a_region_that_is_none_is_refused() -> None:
    with pytest.raises(ArgumentError, match="region is 'UK'; expected a country in two capital letters"):
        Scanner(region="UK")
    assert not Scanner(region="DE").find("am 01.02.2024 um 10.30")
