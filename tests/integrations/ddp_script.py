"""Run by `torchrun` in two processes: a training with the callback, and what each process found."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from lightning_exposure import CanarySet, SecretFormat, SecretTree, measure_exposure
from lightning_exposure.integrations.transformers import ExposureTrainerCallback
from tests.integrations.setups import PIN, TOKENIZER, examples, trainer

KEY = SecretFormat("my key is ?#", name="key")
CANARIES = CanarySet.draw([PIN, KEY], repetitions=[1, 12], seed=0)


def main(folder: Path) -> None:
    callback = ExposureTrainerCallback(CANARIES, TOKENIZER, verbose=False)
    run = trainer(folder / "out", callback, data=examples(CANARIES), num_train_epochs=2)
    run.train()
    by_hand = [
        estimate.bits
        for format, canaries in CANARIES.by_format().items()
        for estimate in measure_exposure(
            SecretTree(run.model, format, TOKENIZER), [canary.text for canary in canaries], precision=0.25
        )
    ]
    found = {
        "world_size": run.args.world_size,
        "bits": [callback.history[-1].estimates[canary.id].bits for canary in CANARIES],
        "by_hand": by_hand,
        "steps": [measurement.step for measurement in callback.history],
        "logged": sum("exposure/max" in entry for entry in run.state.log_history),
        "formats": sorted(callback.extractions),
    }
    (folder / f"{run.args.process_index}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
