"""The same callback in TRL's `SFTTrainer`, which tokenizes a `datasets.Dataset` of texts itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import trl

from lightning_exposure import SecretTree, measure_exposure
from lightning_exposure.data import inject_examples
from lightning_exposure.integrations.transformers import ExposureTrainerCallback
from tests.integrations.setups import CANARIES, LINE, PIN, TOKENIZER, gpt2, same_weights


def fit(folder: Path, *callbacks: Any) -> Any:
    lines = datasets.Dataset.from_dict({"text": [LINE[start : start + 16] for start in range(19)]})
    trainer = trl.SFTTrainer(
        gpt2(),
        args=trl.SFTConfig(
            str(folder), num_train_epochs=1, report_to=[], use_cpu=True, save_strategy="no", eos_token="<pad>",
            bf16=False, gradient_checkpointing=False, dataloader_pin_memory=False, disable_tqdm=True,
        ),
        train_dataset=inject_examples(lines, CANARIES),
        processing_class=TOKENIZER,
        callbacks=list(callbacks),
    )  # fmt: skip
    trainer.train()
    return trainer


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_it_measures_and_changes_nothing(tmp_path: Path) -> None:
    callback = ExposureTrainerCallback(CANARIES, verbose=False)
    trainer = fit(tmp_path, callback)
    tree = SecretTree(trainer.model, PIN, TOKENIZER)
    by_hand = measure_exposure(tree, list(CANARIES.texts), precision=0.25)
    assert list(callback.history[-1].estimates.values()) == by_hand
    assert any("exposure/max" in entry for entry in trainer.state.log_history)
    assert same_weights(trainer.model, fit(tmp_path).model)
