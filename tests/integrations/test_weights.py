"""The weights are bit for bit those without the callback, whatever else draws random numbers meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import default_data_collator

from lightning_exposure.integrations.transformers import ExposureTrainerCallback
from lightning_exposure.report import RunRecord, weights_sha256, write_report
from tests.integrations.setups import CANARIES, TOKENIZER, examples, trainer


def noisy(batch: list[Any]) -> dict[str, Any]:
    """A data collator that draws random numbers: it hides some of the tokens."""
    made = default_data_collator(batch)
    hidden = torch.rand(made["input_ids"].shape) < 0.1
    return {**made, "input_ids": made["input_ids"].masked_fill(hidden, 0)}


def test_with_dropout_accumulation_a_random_collator_and_evaluations(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "num_train_epochs": 2, "gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 1,
    }  # fmt: skip
    found = []
    for callbacks in ([], [ExposureTrainerCallback(CANARIES, TOKENIZER, every_n_steps=1, verbose=False)]):
        one = trainer(tmp_path, *callbacks, eval_dataset=examples()[:4], **options)
        one.data_collator = noisy
        one.train()
        found.append(weights_sha256(one.model))
        assert any("eval_loss" in entry for entry in one.state.log_history)
    assert found[0] == found[1]
    # And the Trainer, as it is now, has a report.
    write_report(one, tmp_path / "report")
    record = RunRecord.load(tmp_path / "report")
    assert record.model is not None
    assert record.model["sha256"] == found[1]
    assert record.data == {"class": "list", "records": len(examples())}
    assert record.steps == one.state.global_step == record.history[-1].step
