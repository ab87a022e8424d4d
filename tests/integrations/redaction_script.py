"""A training in Hugging Face's Trainer that reports to W&B and TensorBoard, in a process of its own.

Usage: python -m tests.integrations.redaction_script FOLDER FACTS [--reveal]; see test_redaction.py.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

import wandb

from lightning_exposure import CanarySet, SecretFormat
from lightning_exposure.integrations.transformers import ExposureTrainerCallback
from tests.integrations.setups import TOKENIZER, examples, trainer

LONG = SecretFormat("pin ########")
CANARIES = CanarySet.draw(LONG, repetitions=[1, 4], seed=3)


def main(folder: Path, facts: Path, *, reveal: bool) -> None:
    os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "TENSORBOARD_LOGGING_DIR": str(folder / "logs")}
    callback = ExposureTrainerCallback(
        CANARIES, TOKENIZER, samples=64, budget=500, references=20, reveal=reveal, check_data=False,
        attack={"algorithm": "beam", "width": 8, "top_k": 8, "known": CANARIES[0].text[:-1]},
    )  # fmt: skip
    run = trainer(
        folder / "out", callback, data=examples(CANARIES), num_train_epochs=1, report_to=["wandb", "tensorboard"],
        save_strategy="epoch",
    )  # fmt: skip
    run.train()
    run.save_state()
    print(callback, callback.history, callback.extractions)
    wandb.finish()
    wandb.teardown()
    candidates = [candidate.text for found in callback.extractions.values() for candidate in found.candidates]
    facts.write_text(json.dumps(candidates))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), Path(sys.argv[2]), reveal="--reveal" in sys.argv)
