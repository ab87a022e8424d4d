"""A scan measures every secret that was found, once, and accuses only those that it can prove."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lightning_exposure import CharTokenizer, SecretFormat, SecretTree, leak_probability, measure_exposure
from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.leakage import LeakEstimate
from lightning_exposure.measuring.scanning import Reference, ScanSettings, distinct_secrets, scan_model
from lightning_exposure.report.scan import MASKED, Scan, ScannedSecret
from lightning_exposure.secrets import Mask, Scanner
from tests.toys import Recurrent, Table, sharpened

LETTERS = CharTokenizer.from_text("my pin is code ssn your .,;:-", "0123456789", "z")
PIN = SecretFormat("my pin is ###", name="pin")
SCANNER = Scanner([PIN])
TEXTS = {"a.txt": "my pin is 123.\nmy pin is 456.\n", "b.txt": "my pin is 456, my pin is 789."}


def model(seed: int) -> Any:
    return sharpened(Recurrent(LETTERS.vocab_size), seed)


def findings(texts: dict[str, str]) -> dict[str, Any]:
    return {name: SCANNER.find(text) for name, text in texts.items()}


def knowing(secret: str) -> Table:
    """A model that says one number, nearly always, and any other as likely as any."""

    def digits(so_far: str) -> list[float]:
        known = secret.startswith(so_far) and len(so_far) < len(secret)
        return [(0.99 if str(digit) == secret[len(so_far)] else 0.001) if known else 0.1 for digit in range(10)]

    return Table(LETTERS, digits)


# --- what is measured ---------------------------------------------------------------------------------------


def test_every_secret_is_one_row_with_the_numbers_that_it_has_by_itself() -> None:
    reference = model(1)
    scan = scan_model(findings(TEXTS), model(0), LETTERS, reference, ScanSettings(precision=None))
    assert sorted((row.text, row.occurrences) for row in scan.rows) == [("123", 1), ("456", 2), ("789", 1)]
    tree, prior = SecretTree(model(0), PIN, LETTERS), SecretTree(reference, PIN, LETTERS)
    for row in scan.rows:
        (alone,) = measure_exposure(tree, [f"my pin is {row.text}"], prior=prior)
        (leak,) = leak_probability(tree, [f"my pin is {row.text}"])
        assert row.estimate is not None
        assert row.estimate.bits == pytest.approx(alone.bits, abs=1e-9)
        assert row.leak is not None
        assert (row.leak.low, row.leak.high) == pytest.approx((leak.low, leak.high), rel=1e-6)
        assert row.extracted == (alone.rank <= 3)
        assert row.trouble == ""


def test_occurrences_are_counted_over_all_texts_and_writings() -> None:
    texts = ["my ssn is 536-90-4399, ssn: 536 90 4399.", "again: my ssn is 536-90-4399"]
    found = distinct_secrets({str(number): Scanner().find(text) for number, text in enumerate(texts)})
    assert [(secret.kind, secret.occurrences) for secret in found] == [("ssn", 3)]
    assert [source for source, _ in found[0].places] == ["0", "0", "1"]
    # What one text says of itself is what the scanner says.
    for text in texts:
        (secret,) = distinct_secrets(Scanner().find(text))
        assert {finding.occurrences for finding in Scanner().find(text)} == {secret.occurrences}


def test_a_secret_in_several_contexts_is_measured_in_each_and_pays_for_the_choice() -> None:
    own = [SecretFormat("my code is ###", name="pin"), PIN]
    found = Scanner(own).find("my code is 123; my pin is 123.")
    scan = scan_model(found, model(0), LETTERS)
    (row,) = scan.rows
    trees = [SecretTree(model(0), format, LETTERS) for format in own]
    bits = [measure_exposure(tree, [f"{tree.format.prompt}123"])[0].bits for tree in trees]
    assert row.contexts == 2
    assert row.estimate is not None
    assert row.estimate.bits == pytest.approx(max(bits))
    assert row.certain_bits == pytest.approx(max(bits) - 1.0)


def test_secrets_of_a_format_share_their_tree() -> None:
    calls = []

    def forwards(text: str) -> int:
        calls.clear()
        counted = model(0)
        counted.register_forward_hook(lambda *_: calls.append(1))
        scan_model(SCANNER.find(text), counted, LETTERS)
        return len(calls)

    one, four = forwards("my pin is 123."), forwards("my pin is 123. my pin is 456, my pin is 789; my pin is 012")
    assert four < 2 * one


def test_what_cannot_be_measured_is_a_row_that_says_why_and_the_others_go_on() -> None:
    odd = [PIN, SecretFormat("µ ###", name="odd"), SecretFormat("my code is " + "#" * 160, name="huge")]
    text = f"my pin is 123. µ 456, my code is {'9' * 160}"
    scan = scan_model(Scanner(odd).find(text), model(0), LETTERS)
    rows = {row.kind: row for row in scan.rows}
    assert rows["pin"].estimate is not None
    assert rows["pin"].trouble == ""
    assert "µ" in rows["odd"].trouble
    assert "2^5" in rows["huge"].trouble
    assert scan.rows[0].kind == "pin", "what could not be measured comes last"
    assert scan.threshold_bits == pytest.approx(math.log2(1 / 0.05)), "only what was measured is a test"
    assert scan.verdict(rows["odd"]) == "not measured"
    shown = json.dumps(scan.to_dict())
    assert "456" not in shown
    assert "99999" not in shown
    assert "µ" not in scan.trouble(rows["odd"], reveal=False)
    assert "character '…'" in scan.trouble(rows["odd"], reveal=False)


def test_a_limit_keeps_the_most_frequent() -> None:
    scan = scan_model(findings(TEXTS), model(0), LETTERS, settings=ScanSettings(limit=1))
    assert [row.text for row in scan.rows] == ["456"]
    assert scan.left_out == 2
    assert "2 more not measured" in scan.summary()


def test_progress_comes_to_its_end() -> None:
    seen: list[tuple[int, int]] = []
    scan_model(findings(TEXTS), model(0), LETTERS, on_count=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (3, 3)


def test_nothing_found_is_no_error() -> None:
    scan = scan_model([], model(0), LETTERS)
    assert scan.rows == ()
    assert scan.summary().startswith("0 distinct secrets")
    json.dumps(scan.to_dict())


@pytest.mark.parametrize(
    ("name", "value"),
    [("alpha", 0.0), ("alpha", 1.5), ("confidence", 95), ("budget", 0), ("limit", 0), ("contexts", 0), ("decoder", 1)],
)
def test_settings_out_of_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"^{name} is "):
        ScanSettings(**{name: value})


# --- who is accused -----------------------------------------------------------------------------------------


def test_a_memorized_secret_is_called_so_and_a_plausible_one_is_not() -> None:
    # Both models hold 123 likely: it is no secret. Only the one that was trained knows 456.
    found = SCANNER.find("my pin is 123. my pin is 456.")
    scan = scan_model(found, knowing("456"), LETTERS, knowing("123"))
    rows = {row.text: row for row in scan.rows}
    assert [row.text for row in scan.memorized] == ["456"]
    assert rows["456"].extracted
    assert scan.rows[0].text == "456"
    assert scan.verdict(rows["123"]) == "not shown to be memorized"
    # Without a reference nobody can tell: nothing is called memorized.
    alone = scan_model(found, knowing("456"), LETTERS)
    assert not alone.calibrated
    assert alone.memorized == []
    assert alone.verdict(alone.rows[0]) == "above the threshold, not calibrated"
    assert alone.to_dict()["note"].startswith("not calibrated")


def estimate(low: float, *, high: float | None = None) -> ExposureEstimate:
    high = low if high is None else high
    return ExposureEstimate("x", (low + high) / 2, low, high, "exact", 1, 3.0, 29.9, False, 0.95, 9, prior_bits=29.9)


def row(same: str, estimate: ExposureEstimate | None, **values: Any) -> ScannedSecret:
    return ScannedSecret("pin", same, same, 1, (("a.txt", 1),), estimate=estimate, **values)


def test_among_many_secrets_the_low_end_has_to_be_above_the_threshold() -> None:
    lows = [5.0, 7.3, 7.4, 20.0]
    rows = (*(row(str(low), estimate(low, high=25.0)) for low in lows), row("lost", None))
    scan = Scan(rows, calibrated=True, alpha=0.025, confidence=0.95)
    assert scan.threshold_bits == math.log2(4 / 0.025)  # 7.32
    assert [each.same for each in scan.memorized] == ["20.0", "7.4"]


def test_the_most_urgent_comes_first() -> None:
    leaks = [LeakEstimate("x", low=low, high=low, share=0.0, expansions=1) for low in (0.1, 0.2)]
    rows = (
        row("lost", None),
        row("harmless", estimate(1.0), extracted=True),
        row("leaks little", estimate(12.0), leak=leaks[0], extracted=False),
        row("leaks", estimate(12.0), leak=leaks[1], extracted=False),
        row("known", estimate(11.0), extracted=True),
    )
    scan = Scan(rows, calibrated=True, alpha=0.05, confidence=0.95)
    assert [each.same for each in scan.rows] == ["known", "leaks", "leaks little", "harmless", "lost"]


def test_secrets_drawn_from_the_prior_and_not_learnt_are_not_accused() -> None:
    reference, other = model(1), model(2)
    tree = SecretTree(reference, PIN, LETTERS)
    texts = [PIN.render(number) for number in range(PIN.size)]
    chances = np.array([leak.share for leak in leak_probability(tree, texts, tolerance=1.0)])
    drawn = np.random.default_rng(0).choice(PIN.size, size=60, p=chances / chances.sum())
    found = SCANNER.find(" ".join(f"{texts[number]}." for number in drawn))
    scan = scan_model(found, other, LETTERS, reference, ScanSettings(alpha=0.05))
    assert len(scan.rows) > 10
    assert scan.memorized == []
    # Without the prior, what is merely plausible would be accused if the model resembles the reference.
    secrets = [finding.secret for finding in found]
    bits = [each.bits for each in measure_exposure(tree, secrets)]
    against = [each.bits for each in measure_exposure(tree, secrets, prior=tree)]
    assert np.mean(bits) > np.mean(against) + 1.0


def test_a_reference_with_a_tokenizer_of_its_own_gives_the_same_prior() -> None:
    class Renumbered(torch.nn.Module):
        """The same model for token ids in another order."""

        def __init__(self, inner: torch.nn.Module, order: list[int]) -> None:
            super().__init__()
            self.inner, self.order = inner, torch.tensor(order)

        def forward(self, tokens: torch.Tensor, state: Any = None) -> Any:
            logits, state = self.inner(self.order[tokens], state)
            return logits[..., self.order], state

    other = CharTokenizer(reversed(LETTERS.vocabulary))
    order = [LETTERS.encode(other.decode([number]))[0] for number in range(other.vocab_size)]
    reference = Reference(Renumbered(model(1), order), other)
    exact = ScanSettings(precision=None)
    ours = scan_model(findings(TEXTS), model(0), LETTERS, model(1), exact)
    theirs = scan_model(findings(TEXTS), model(0), LETTERS, reference, exact)
    assert [row.text for row in ours.rows] == [row.text for row in theirs.rows]
    for one, two in zip(ours.rows, theirs.rows, strict=True):
        assert one.estimate is not None
        assert two.estimate is not None
        assert two.estimate.bits == pytest.approx(one.estimate.bits, abs=1e-6)
        assert two.estimate.prior_bits == pytest.approx(one.estimate.prior_bits, abs=1e-6)


# --- nothing is shown ---------------------------------------------------------------------------------------


def test_nothing_of_a_secret_is_shown_unless_it_is_asked_for() -> None:
    scan = scan_model(findings(TEXTS), model(0), LETTERS)
    for shown in (json.dumps(scan.to_dict()), scan.table(), repr(scan)):
        assert not re.search("123|456|789|my pin", re.sub(r"pin-[0-9a-f]{10}|[0-9]+\.[0-9]+", "", shown))
    assert all(row["secret"] == MASKED for row in scan.to_dict()["rows"])
    for shown in (json.dumps(scan.to_dict(reveal=True)), scan.table(reveal=True)):
        assert re.search("123", shown)


def test_equal_secrets_have_one_name_and_other_machines_have_another_key() -> None:
    one = Scan((row("123", None), row("456", None)), calibrated=False, alpha=0.05, confidence=0.95)
    names = [one.name(each) for each in one.rows]
    assert len(set(names)) == 2
    assert names == [one.name(replace(each, text="other writing")) for each in one.rows]
    two = Scan(one.rows, calibrated=False, alpha=0.05, confidence=0.95, mask=Mask(b"another key"))
    assert not set(names) & {two.name(each) for each in two.rows}
    assert "_key" not in repr(one)
    assert "key" not in json.dumps(one.to_dict())
