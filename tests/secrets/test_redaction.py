"""One rule for what is shown of a secret: canaries on this machine, everything with `reveal`, nothing else."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.extraction import Candidate, Extraction
from lightning_exposure.leakage import LeakEstimate
from lightning_exposure.leakage.estimate import NearMiss
from lightning_exposure.measuring.scanning import distinct_secrets
from lightning_exposure.report import RunRecord
from lightning_exposure.report.tables import extraction_rows, extraction_table
from lightning_exposure.secrets import Canary, CanarySet, Finding, Redaction, SecretFormat
from tests.secrecy import is_private, leaked

SSN = SecretFormat.ssn()
FORMATS = {
    "digits": (SSN, "my ssn is 078-05-1120", "my ssn is 219-09-9999"),
    "words": (
        SecretFormat("{who} has pin ####", who=["Alexander", "Beatrice"], name="door"),
        "Alexander has pin 4821",
        "Beatrice has pin 9035",
    ),
    "regex": (
        SecretFormat.regex("password: [a-z0-9]{6,8}(-old)?"),
        "password: kx7r2mq-old",
        "password: zz90vty",
    ),
    "lines": (
        SecretFormat("Name: {who}\nCode: ##-????", who=["Ann", "Bo"]),
        "Name: Ann\nCode: 47-qzxw",
        "Name: Bo\nCode: 93-vkjy",
    ),
}
formats = pytest.mark.parametrize(("format", "made_up", "real"), FORMATS.values(), ids=FORMATS)


@formats
@pytest.mark.parametrize(
    ("shared", "reveal", "shows_canary", "shows_others"),
    [(False, False, True, False), (True, False, False, False), (False, True, True, True), (True, True, True, True)],
)
def test_the_rule(
    format: SecretFormat, made_up: str, real: str, shared: bool, reveal: bool, shows_canary: bool, shows_others: bool
) -> None:
    redaction = Redaction([Canary("one", made_up, format, 4)], shared=shared, reveal=reveal)
    for text, shows in ((made_up, shows_canary), (real, shows_others)):
        shown = redaction.text(text, format)
        assert redaction.shows(text) == shows
        assert (shown == text) == shows
        assert bool(leaked(shown, [(text, format)])) == shows
        assert shows or shown.startswith(format.masked)
    assert redaction.private == (shows_canary or shows_others)


@formats
def test_without_a_format_nothing_is_shown_but_a_name(format: SecretFormat, made_up: str, real: str) -> None:
    shown = Redaction().text(real)
    assert re.fullmatch(r"•••• \(secret-[0-9a-f]{10}\)", shown)
    assert shown == Redaction(shared=True).text(real) != Redaction().text(made_up)


@formats
def test_what_is_masked_stays_as_it_is(format: SecretFormat, made_up: str, real: str) -> None:
    once = Redaction().text(real, format)
    assert Redaction().text(once, format) == Redaction().text(once) == once


@formats
def test_what_an_attacker_knows_is_hidden_behind_the_prompt(format: SecretFormat, made_up: str, real: str) -> None:
    known = real[: len(format.prompt) + 2]
    shown = Redaction().beginning(known, format)
    assert re.fullmatch(rf"{format.prompt}•••• \({format.name}-[0-9a-f]{{10}}\)", shown)
    assert Redaction().beginning(shown, format) == shown
    assert Redaction().beginning(format.prompt, format) == format.prompt
    assert Redaction(reveal=True).beginning(known, format) == known
    assert Redaction().beginning(known) == Redaction().text(known)
    here = Redaction([Canary("one", made_up, format, 4)])
    assert here.beginning(made_up[:-1], format) == made_up[:-1]
    assert here.beginning(known, format) == shown


def test_reveal_is_true_or_false() -> None:
    with pytest.raises(ArgumentError, match="reveal is 'yes', of type str; expected True or False"):
        Redaction(reveal="yes")  # type: ignore[arg-type]


def test_what_it_writes_of_itself_holds_no_text() -> None:
    assert repr(Redaction([Canary("one", "my ssn is 078-05-1120", SSN, 4)])) == (
        "<Redaction with 1 canaries: shared=False, reveal=False>"
    )


# ---- estimates, attacks and records -----------------------------------------------------------------------------


def estimate(text: str) -> ExposureEstimate:
    return ExposureEstimate(text, 9.0, 9.0, 9.0, "exact", 1, 3.0, 29.9, False, 0.95, 9)


def attack(format: SecretFormat, *texts: str) -> Extraction:
    candidates = tuple(Candidate(text, float(place), place) for place, text in enumerate(texts, 1))
    settings = {"top_k": 2, "known": texts[0][:-2], "target": texts[0], "stop": "proof"}
    return Extraction(candidates, False, 0.0, "width", 9, 0.1, "beam", settings, format=format)


@formats
def test_repr_and_print_show_no_secret(format: SecretFormat, made_up: str, real: str) -> None:
    found = attack(format, real)
    miss = NearMiss(made_up, 0.1, 0.2, 3, f"{made_up[:-1]}[{made_up[-1]}]")
    leak = LeakEstimate(real, 0.1, 0.2, 0.3, 9, (miss,))
    canary = Canary("one", real, format, 4)
    cut = len(format.prompt)
    finding = Finding(format.name, real[cut:], cut, len(real), 1, "behind 4821 ")
    (secret,) = distinct_secrets([finding])
    things = [estimate(real), found, leak, miss, canary, CanarySet([canary]), finding, secret]
    for thing in (*things, things, {"x": found.candidates[0]}):
        written = f"{thing!r} {thing} {getattr(thing, '_repr_html_', str)()}"
        assert not leaked(written, [(real, format), (made_up, format)])
        assert "4821" not in written
    assert real not in leak.table()
    assert real in leak.table(reveal=True)
    assert "bits=9.0" in repr(estimate(real))
    assert repr(estimate(real)) == repr(estimate(real)) != repr(estimate(made_up))


@formats
def test_the_texts_are_still_there_for_whoever_asks(format: SecretFormat, made_up: str, real: str) -> None:
    assert estimate(real).to_dict()["secret"] == estimate(real).secret == real
    again = pickle.loads(pickle.dumps(attack(format, real)))
    assert again.candidates[0].text == real
    assert again.format == format


@formats
def test_redacted_results(format: SecretFormat, made_up: str, real: str) -> None:
    here = Redaction([Canary("one", made_up, format, 4)])
    shown = attack(format, real, made_up).redacted(here)
    assert [candidate.text == made_up for candidate in shown.candidates] == [False, True]
    assert shown.settings["stop"] == "proof"
    assert not leaked(str(shown.to_dict()), [(real, format)])
    assert not leaked(str(estimate(real).redacted(here, format).to_dict()), [(real, format)])
    assert estimate(real).redacted(Redaction(reveal=True)) == estimate(real)


@formats
def test_tables_of_candidates(format: SecretFormat, made_up: str, real: str) -> None:
    canaries = CanarySet([Canary("one", made_up, format, 4)])
    found = {format.name: attack(format, real, made_up)}
    both = [(real, format), (made_up, format)]
    assert leaked(extraction_table(found, canaries), both) == {made_up}
    assert not leaked(extraction_table(found, canaries, Redaction(canaries, shared=True)), both)
    assert leaked(extraction_table(found, canaries, Redaction(canaries, reveal=True)), both) == {real, made_up}
    assert [row[4] for row in extraction_rows(found, canaries, Redaction(canaries, shared=True))] == ["", "one"]


@formats
def test_an_attack_in_a_file(format: SecretFormat, made_up: str, real: str, tmp_path: Path) -> None:
    path = tmp_path / "attack.json"
    for reveal in (False, True):
        attack(format, real).save(path, reveal=reveal)
        assert bool(leaked(path.read_text(), [(real, format)])) == reveal
        assert is_private(path)
    assert Extraction.load(path) == replace(attack(format, real), format=None)


@formats
def test_a_record_in_a_file(format: SecretFormat, made_up: str, real: str, tmp_path: Path) -> None:
    canaries = CanarySet([Canary("one", made_up, format, 4)])
    record = RunRecord(canaries, extractions={format.name: attack(format, real, made_up)})
    both = [(real, format), (made_up, format)]
    for reveal, shown in ((False, {made_up}), (True, {real, made_up})):
        path = record.save(tmp_path, reveal=reveal)
        assert leaked(path.read_text(), both) == shown
        assert is_private(path)
        again = RunRecord.load(path)
        assert again.extracted == record.extracted == ("one",)
        assert again.verdicts == record.verdicts
        assert again.save(tmp_path / "again").read_text() == record.save(tmp_path).read_text()


def test_the_canaries_in_a_file_are_for_their_owner_only(tmp_path: Path) -> None:
    canaries = CanarySet.draw(SSN, repetitions=[4])
    (tmp_path / "canaries.json").write_text("of an earlier version, for everyone to read")
    canaries.save(tmp_path / "canaries.json")
    assert is_private(tmp_path / "canaries.json")
    assert CanarySet.load(tmp_path / "canaries.json") == canaries
