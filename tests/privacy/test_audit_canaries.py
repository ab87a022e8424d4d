"""Canaries made for audits: which they are, who takes them, and who refuses them by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_exposure import (
    AuditCallback,
    CanarySet,
    CharTokenizer,
    ExposureCallback,
    ExtractionCallback,
    SecretFormat,
    SecretTree,
    WordTokenizer,
)
from lightning_exposure.cli import main
from lightning_exposure.errors import ArgumentError, TokenizerError
from lightning_exposure.integrations.lm_eval import write_task
from lightning_exposure.measuring import ExposureLoop
from lightning_exposure.privacy import draw_audit_canaries, unused_token_format
from lightning_exposure.walks import score

TEXT = "pin 0123456789"
TOKENIZER = CharTokenizer.from_text(TEXT)
PIN = SecretFormat("pin ####")


def model(seed: int = 0) -> torch.nn.Module:
    """Which character comes next depends on the last one."""
    weight = torch.randn(14, 14, generator=torch.Generator().manual_seed(seed))
    return torch.nn.Embedding(14, 14, _weight=weight)


TREE = SecretTree(model(), PIN, TOKENIZER)
MADE = draw_audit_canaries(TREE, 40, seed=1)


# --- a band of costs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("band", [(0.0, 0.1), (0.4, 0.6), (0.9, 1.0)])
def test_the_costs_lie_in_the_band_of_all_secrets_of_the_format(band: tuple[float, float]) -> None:
    everything = np.sort(score(TREE, [PIN.render(place) for place in range(PIN.size)]).costs)
    canaries = draw_audit_canaries(TREE, 100, band=band, seed=0)
    places = np.searchsorted(everything, score(TREE, canaries.texts).costs) / PIN.size
    assert len(canaries) == 100
    # The edges of the band are those of what was drawn, which are a few hundredths off.
    assert band[0] - 0.05 < places.min()
    assert places.max() < band[1] + 0.05
    assert places.mean() == pytest.approx(sum(band) / 2, abs=0.03)


def test_the_whole_band_is_what_a_uniform_draw_gives() -> None:
    uniform = CanarySet.draw(PIN, repetitions=[1] * 30, seed=5, holdout=0.5, purpose="audit")
    assert draw_audit_canaries(TREE, 30, band=(0.0, 1.0), seed=5) == uniform


def test_the_coins_know_nothing_of_the_costs() -> None:
    canaries = draw_audit_canaries(TREE, 400, seed=0)
    assert {canary.holdout for canary in canaries} == {0.5}
    assert {canary.purpose for canary in canaries} == {"audit"}
    assert {canary.repetitions for canary in canaries} == {1}
    assert 160 < len(canaries.held_out) < 240
    costs = {held_out: [] for held_out in (False, True)}  # type: dict[bool, list[float]]
    for canary, cost in zip(canaries, score(TREE, canaries.texts).costs, strict=True):
        costs[canary.held_out].append(float(cost))
    spread = np.std(costs[False] + costs[True])
    assert abs(np.mean(costs[False]) - np.mean(costs[True])) < 0.3 * spread
    assert canaries == draw_audit_canaries(TREE, 400, seed=0) != draw_audit_canaries(TREE, 400, seed=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "count is 0; expected an integer of at least 1"),
        ({"repetitions": 0}, "repetitions is 0; expected an integer of at least 1"),
        ({"count": 1001}, r"count is 1001; expected at most 1000 in this band.*10,000 secrets"),
        ({"band": (0.5, 0.5)}, r"band is \(0\.5, 0\.5\); expected two numbers from 0 to 1, the lower first"),
        ({"band": 0.9}, r"band is 0\.9; expected two numbers"),
        ({"band": (0.5, 1.5)}, r"band\[1\] is 1\.5; expected a number of at least 0 and of at most 1"),
    ],
)
def test_a_draw_that_is_none_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        draw_audit_canaries(TREE, **{"count": 10, **arguments})


# --- unused tokens ------------------------------------------------------------------------------------------


def test_unused_tokens_are_in_the_vocabulary_and_not_in_the_texts() -> None:
    texts = ["the code", "is 12"]
    tokenizer = CharTokenizer.from_text(*texts, "#?{\\}é字")
    format = unused_token_format(tokenizer, texts, length=5, prompt="is {#1}? ")
    assert format.prompt == "is {#1}? "
    assert set(format.words["token"]) == {"\\", "é", "字"}, "what the prompt uses is used, too"
    assert format.size == 3**5
    canaries = CanarySet.draw(format, repetitions=[1] * 20, holdout=0.5, purpose="audit")
    seen = {token for text in texts for token in tokenizer.encode(text)}
    for canary in canaries:
        assert not seen & set(tokenizer.encode(canary.text.removeprefix("is {#1}? ")))


def test_a_tokenizer_of_words_needs_something_between_them() -> None:
    tokenizer = WordTokenizer.from_text("some words are used and others never occur")
    format = unused_token_format(tokenizer, ["some words are used"], length=3, between=" ")
    assert set(format.words["token"]) == {"and", "others", "never", "occur"}
    assert len(format.render(0).split()) == 3
    with pytest.raises(TokenizerError):
        unused_token_format(tokenizer, ["some words are used"], length=3)


def test_a_vocabulary_with_nothing_to_spare_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"tokenizer has 14 tokens, of which 0 can be written.*larger vocabulary"):
        unused_token_format(TOKENIZER, [TEXT])


# --- who refuses them ---------------------------------------------------------------------------------------


REFUSAL = r"canaries has pin-1x-\d+, pin-1x-\d+, pin-1x-\d+ and 37 more, with purpose='audit'; .*canaries\.for_exposure"


def test_exposure_attacks_and_tasks_refuse_them_by_name_and_audits_take_them(tmp_path: Path) -> None:
    for kind in (ExposureCallback, ExtractionCallback):
        with pytest.raises(ArgumentError, match=REFUSAL):
            kind(MADE, TOKENIZER)
    with pytest.raises(ArgumentError, match=REFUSAL):
        write_task(tmp_path / "task", MADE)
    assert AuditCallback(MADE, TOKENIZER).canaries == MADE


def test_the_command_line_refuses_their_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MADE.save(tmp_path / "canaries.json")
    code = main(["check", str(tmp_path), "--canaries", str(tmp_path / "canaries.json"), "--max_exposure", "10"])
    assert code != 0
    assert "with purpose='audit'" in capsys.readouterr().err


def test_a_loop_measures_the_others_and_audits_all() -> None:
    others = CanarySet.draw(SecretFormat("pin ##", name="short"), repetitions=[1, 20], seed=0)
    both, trained = CanarySet([*others, *MADE]), model(1)
    with ExposureLoop(trained, both, TOKENIZER, references=16, budget=500, verbose=False) as exposure:
        exposure.after_step()
    assert set(exposure.run.history[-1].estimates) == {"short-1x", "short-20x"}
    assert exposure.run.result is not None
    assert exposure.run.result.inserted + exposure.run.result.held_out == 40
    with pytest.raises(ArgumentError, match=REFUSAL):
        ExposureLoop(trained, MADE, TOKENIZER)
