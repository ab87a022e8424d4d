"""What a report answers somebody who has to decide; each number against a slow and obvious one."""

from __future__ import annotations

import math
import shutil
import subprocess
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_exposure.report import RunRecord
from lightning_exposure.report._advice import advice
from lightning_exposure.report._chance import expected_luckiest_bits, luckiest_bits, of_a_group, share_not_ruled_out
from lightning_exposure.report.pages import _answers as answers
from lightning_exposure.report.pages import run as html
from lightning_exposure.report.pages._card import model_card
from lightning_exposure.report.pages._contents import shade
from lightning_exposure.report.pages.run import render
from lightning_exposure.report.side_by_side import defences_of
from lightning_exposure.report.verdicts import HOLDS, LEAKS
from lightning_exposure.secrets import Canary, CanarySet, SecretFormat
from tests.report.builder import make_estimate, make_extraction, make_record

PRIVACY: dict[str, Any] = {
    "epsilon": 2.0, "delta": 1e-6, "accountant": "prv", "noise_multiplier": 1.0, "max_grad_norm": 0.5,
    "sample_rate": 0.01, "steps": 1234, "target_epsilon": None, "max_epsilon": None, "history": [[1.0, 0.01, 1234]],
    "spending": [[617, 1.5], [1234, 2.0]], "post_processing": ["MaxNorm"], "proven": True, "seeded": False,
}  # fmt: skip
AUDIT: dict[str, Any] = {
    "epsilon_lower": 0.5, "inserted": 98, "held_out": 102, "correct": 60, "guesses": 90, "delta": 1e-6,
    "confidence": 0.95, "alarm": False,
}  # fmt: skip


# --- chance ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 10, 200])
def test_luck_exceeds_the_level_with_the_probability_it_says_and_hardly_less(count: int) -> None:
    exact = 1 - (1 - 2 ** -luckiest_bits(count, 0.05)) ** count  # ranks of never-seen canaries are uniform
    assert 0.04 < exact <= 0.05 + 1e-12


@pytest.mark.parametrize("count", [1, 3, 50])
def test_the_luckiest_shows_so_much_on_average(count: int) -> None:
    ranks = np.random.default_rng(0).integers(1, 10**9 + 1, size=(4000, count))
    simulated = (math.log2(10**9) - np.log2(ranks.min(axis=1))).mean()
    assert expected_luckiest_bits(count) == pytest.approx(simulated, abs=0.1)


def test_a_small_format_shows_less_than_the_average_says() -> None:
    size = 10
    exact = sum(math.log2(size / rank) for rank in range(1, size + 1)) / size
    assert exact <= expected_luckiest_bits(1)


@pytest.mark.parametrize("count", [1, 3, 59])
def test_none_of_so_many_found_leaves_room_for_this_share(count: int) -> None:
    share = share_not_ruled_out(count)
    assert (1 - share) ** count == pytest.approx(0.05)


@pytest.mark.parametrize(("epsilon", "records"), [(0.5, 1), (0.5, 4), (2.0, 3)])
def test_group_privacy_is_that_of_neighbours_one_after_the_other(epsilon: float, records: int) -> None:
    total, delta = of_a_group(epsilon, 1e-6, records)
    step_by_step = Fraction(0)
    for _ in range(records):
        step_by_step = step_by_step * Fraction(math.exp(epsilon)) + Fraction(1e-6)
    assert total == pytest.approx(records * epsilon)
    assert delta == pytest.approx(float(step_by_step))


def test_a_group_without_end_promises_nothing() -> None:
    assert of_a_group(8.0, 1e-6, 10_000) == (80_000.0, 1.0)
    assert of_a_group(0.0, 1e-6, 3) == (0.0, pytest.approx(3e-6))


# --- guesses ---------------------------------------------------------------------------------------------------------


def with_ranks(*ranks: int, sampled: int | None = None) -> RunRecord:
    """A record of exact ranks, one canary each; and one of which a sample says that it is about so far down."""
    ssn = SecretFormat.ssn()
    wanted = len(ranks) + (sampled is not None)
    canaries = CanarySet(Canary(f"c{place}", ssn.render(place), ssn, 1) for place in range(wanted))
    size_bits = math.log2(ssn.size)
    bits = [size_bits - math.log2(rank) for rank in ranks]
    estimates = {
        canary.id: make_estimate(canary, value, low=value, high=value, method="exact", rank=rank)
        for canary, value, rank in zip(canaries, bits, ranks, strict=False)
    }
    if sampled is not None:
        middle = size_bits - math.log2(sampled)
        changes = {"low": middle - 0.1, "high": middle + 0.1, "method": "importance", "rank": float(sampled)}
        estimates[canaries[-1].id] = make_estimate(canaries[-1], middle, **changes)
    record = make_record(epochs=1)
    measurement = replace(record.history[0], estimates=estimates)
    return RunRecord(canaries, history=[measurement])


def test_how_many_guesses_suffice_is_counted() -> None:
    ranks = (1, 7, 400, 10**7)
    rows = answers.guess_rows(with_ranks(*ranks))
    for row, guesses in zip(rows, (1, 10, 1000, 10**6), strict=True):
        found = sum(rank <= guesses for rank in ranks)
        assert row.found == (f"{found} (proven)" if found else "0")
        assert row.spared == f"{4 - found} (proven)"
        assert row.unknown == "0"
        assert float(row.blind) == pytest.approx(4 * guesses / 10**9)


def test_what_rests_on_a_sample_says_so_and_what_is_open_is_unknown() -> None:
    found = {row.guesses: row for row in answers.guess_rows(with_ranks(2, sampled=1000))}
    assert found["1"] == ("1", "0", "2 (1 proven, 1 with 95% confidence)", "0", "2e-09")
    assert (found["1,000"].found, found["1,000"].spared, found["1,000"].unknown) == ("1 (proven)", "0", "1")
    assert found["1,000,000"].found == "2 (1 proven, 1 with 95% confidence)"


def test_the_chance_level_names_those_above_it_by_their_low_ends() -> None:
    assert "c0 is above that" in answers.chance_in_words(with_ranks(1, 10**8))[1]
    low = with_ranks(10**9 // 2, 10**9 // 3)
    assert "none of them is above that" in answers.chance_in_words(low)[1]
    unsure = with_ranks(sampled=round(10**9 / 2 ** luckiest_bits(1)))  # around the level: its low end is below
    assert "none of them is above that" in answers.chance_in_words(unsure)[1]


def test_a_format_too_small_to_tell_from_luck_is_called_so() -> None:
    tiny = SecretFormat("pin #")
    canaries = CanarySet([Canary("pin-1x", "pin 7", tiny, 1)])
    estimate = make_estimate(canaries[0], math.log2(10), rank=1, method="exact")
    record = RunRecord(canaries, history=[replace(make_record(epochs=1).history[0], estimates={"pin-1x": estimate})])
    assert "can show more than 3.3 bits, so none could be told from luck" in answers.chance_in_words(record)[1]


# --- promise, audit, gate, defences ----------------------------------------------------------------------------------


def test_the_promise_and_what_it_rests_on() -> None:
    record = replace(make_record(), privacy=PRIVACY, audit=AUDIT)
    rows = dict(answers.privacy_rows(record))
    assert rows["Epsilon"] == "2"
    assert rows["Private steps"] == "1,234"
    assert rows["Taken on trust"] == "MaxNorm"
    assert "Target epsilon" not in rows
    assert answers.spending_rows(record) == [("617", "1.5"), ("1,234", "2")]
    assert answers.group_rows(record)[0] == ("1", "2", "1e-06")
    assert answers.group_rows(record)[-1] == ("16", "32", "1: nothing is promised")
    assert "epsilon is at least 0.5 with 95% confidence" in answers.audit_in_words(record)
    assert "The promise of 2 is not contradicted" in answers.audit_in_words(record)
    alarmed = replace(record, audit={**AUDIT, "epsilon_lower": 3.0, "alarm": True})
    assert "That contradicts the promise of 2." in answers.audit_in_words(alarmed)
    assert advice(alarmed)[0].title == "Do not rely on epsilon"


def test_whom_epsilon_is_for_is_said() -> None:
    record = replace(make_record(), privacy=PRIVACY)
    assert dict(answers.privacy_rows(record))["Epsilon is for"] == "one record"
    assert answers.promise_in_words(record).startswith("Epsilon is about the addition or removal of one record.")
    by_user = {**PRIVACY, "unit": "user", "max_records_per_user": 8, "norms": [[10, 0.5, 1.0]]}
    users = replace(record, privacy=by_user, ledger=None)
    rows = dict(answers.privacy_rows(users))
    assert rows["Epsilon is for"] == "one user, with at most 8 records in a batch"
    assert rows["Share of clipped users"].startswith("50%")
    assert "one user, with all records that are his" in answers.promise_in_words(users)
    # Who knows how many users the copies of a canary belong to; unless it was planted as one.
    assert answers.group_rows(users)[-1][0] == "16"
    planted = replace(users, ledger={canary.id: canary.copies for canary in record.canaries})
    assert answers.group_rows(planted) == []
    assert "Every canary is a user of its own" in answers.promise_in_words(planted)
    assert "one user, with all records" in " ".join(model_card(planted).split())
    assert defences_of(users)[0]["for"] == "one user"
    assert "at least 0.5 for one user with" in answers.audit_in_words(replace(planted, audit=AUDIT))


def test_an_infinite_epsilon_promises_nothing() -> None:
    record = replace(make_record(), privacy={**PRIVACY, "epsilon": "inf", "spending": [[1, "inf"]]})
    assert dict(answers.privacy_rows(record))["Epsilon"] == "infinite: nothing is promised"
    assert answers.group_rows(record) == []
    assert answers.spending_rows(record) == [("1", "infinity")]
    assert advice(record)[0].title == "Add noise"


def test_gate_defences_and_scan_are_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "pictures", lambda record: [])
    record = replace(
        make_record(),
        gate={"max_bits": 10.0, "answer": "exceeded", "reason": "ssn-16x is at <29.9> bits", "stopped_at_step": None},
        defences=[{"name": "redact", "kinds": ["ssn", "email"], "replaced": 4120}],
        scan={"rows": [{"extracted": True}], "left_out": 2, "measured": 1, "threshold_bits": 4.32, "alpha": 0.05,
              "memorized": 1},
        others={"against <a prior>": make_record((2,), epochs=1)},
    )  # fmt: skip
    page = render(record)
    for words in (
        "ssn-16x is at &lt;29.9&gt; bits",
        "kinds ssn, email, replaced 4,120",
        "4.32 bits, which luck exceeds with a probability of at most 0.05",
        "Canaries: against &lt;a prior&gt;",
    ):
        assert words in page
    titles = [step.title for step in advice(record)]
    assert "Mind the gate" in titles
    assert "Change the secrets that were memorized" in titles


def test_a_leak_that_only_a_further_callback_shows_is_in_the_headline() -> None:
    record = with_ranks(10**7)
    other = RunRecord(
        CanarySet.draw(SecretFormat.pin(), repetitions=[5], seed=0),
        extractions={"pin": make_extraction([CanarySet.draw(SecretFormat.pin(), repetitions=[5], seed=0)[0].text])},
    )
    record.others["again"] = other
    assert record.verdict == "1 of 2 secrets can be extracted with the first guess"


# --- what to do next -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "first", "among"),
    [
        (make_record(), "Do not hand out these weights as they are", "Train with differential privacy"),
        (make_record((1, 16)), "Do not hand out these weights as they are", "Stop earlier"),
        (with_ranks(1, 10**8), "Do not hand out these weights as they are", "Train with differential privacy"),
        (with_ranks(10**8), "Insert more canaries", "Keep measuring"),
        (with_ranks(sampled=10**8), "Prove it", "Insert more canaries"),
        (RunRecord(CanarySet.draw(SecretFormat.ssn(), repetitions=[1])), "Find out", "Attack the model"),
        (replace(with_ranks(1), steps=99_999), "Measure the last weights", "Attack the model"),
        (replace(with_ranks(1), steps=9, interrupted="ValueError"), "Finish the training", "Measure the last weights"),
    ],
)  # fmt: skip
def test_what_to_do_next_follows_from_the_verdict(record: RunRecord, first: str, among: str) -> None:
    titles = [step.title for step in advice(record)]
    assert titles[0] == first
    assert among in titles
    assert len(set(titles)) == len(titles)


def test_duplicates_are_blamed_only_if_rarer_ones_are_spared() -> None:
    assert "Remove duplicates" in [step.title for step in advice(make_record((1, 4, 16)))]
    assert "Remove duplicates" not in [step.title for step in advice(make_record((16,)))]


# --- the model card --------------------------------------------------------------------------------------------------


def test_the_card_holds_no_secret_and_takes_nothing_for_markup() -> None:
    bad = SecretFormat("a|b *##* <i>", name="bad")
    canaries = CanarySet([Canary("bad-3x", bad.render(7), bad, 3)])
    attack = make_extraction([canaries[0].text, bad.render(9)])
    record = RunRecord(canaries, extractions={"bad": attack}, privacy=PRIVACY, audit=AUDIT, date="2026-11-18")
    record.defences = [{"name": "a|<b>", "how": "*x*\n# y"}]
    card = model_card(record)
    assert canaries[0].text not in card
    assert bad.render(9) not in card
    assert "| bad-3x | 3 |" in card
    assert "- **a\\|\\<b\\>**: how \\*x\\* \\# y" in card
    assert "<" not in card.replace("\\<", "")
    for words in ("## Memorization and privacy", "- **Epsilon**: 2", "### What to do next", "epsilon is at least 0.5"):
        assert words in card
    tables = [line for line in card.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)


# --- on paper --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_on_paper_everything_is_open_and_nothing_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = next(
        (found for found in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if found), None
    )
    reader = shutil.which("pdftotext")
    if browser is None or reader is None:
        pytest.skip("Chromium or pdftotext is not installed.")
    monkeypatch.setattr(html, "pictures", lambda record: [])
    record = replace(make_record((0, 1, 4, 16)), privacy=PRIVACY, audit=AUDIT)
    record.settings["folded"] = "a-setting-that-is-folded"
    page = tmp_path / "report.html"
    page.write_text(render(record), encoding="utf-8")
    pdf = tmp_path / "report.pdf"
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    subprocess.run(
        [browser, *options, f"--print-to-pdf={pdf}", page.as_uri()], check=True, timeout=120, capture_output=True
    )
    text = subprocess.run([reader, "-layout", pdf, "-"], check=True, capture_output=True, text=True, timeout=60).stdout
    assert "a-setting-that-is-folded" in text
    assert "How epsilon was spent" in text
    assert "617" in text
    for canary in record.canaries:  # the last column of the widest table, perhaps over several lines
        assert canary.text.rpartition(" ")[2] in text


def test_real_secrets_that_a_scan_found_decide_with_the_canaries() -> None:
    """A page is not green while the model gives real secrets away."""
    record = with_ranks(10**7)
    record.scan = {"memorized": None, "rows": [{"extracted": True}, {"extracted": False}]}
    assert record.verdict.endswith("an attack finds 1 real secret of the training texts")
    assert shade(record) != HOLDS
    assert advice(record)[0].title == "Look at the real secrets that an attack finds"
    record.scan = {"memorized": 2, "rows": []}
    assert record.verdict.endswith("2 real secrets of the training texts memorized")
    assert shade(record) == LEAKS
