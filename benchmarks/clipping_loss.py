"""What each way to clip makes of the same epsilon: the validation loss of small models on the text that comes with us.

    python -m benchmarks.clipping_loss --csv clipping-loss.csv

Adam at one learning rate, two epochs, epsilon 3 at delta 1e-5. Only the way to clip and the norm (the first one, for a
norm that adapts) differ. Each training is a line of the table, written when it is known; what the file has already is
not computed again.
"""

from __future__ import annotations

import argparse
import csv
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Trainer, seed_everything

from lightning_exposure import DifferentialPrivacy
from lightning_exposure.data import TextDataModule
from lightning_exposure.modules import LanguageModel

MODELS = ("lstm", "transformer")
WAYS = ("flat", "per_layer", "adaptive")
NORMS = (0.1, 1.0, 10.0)
COLUMNS = ("model", "clipping", "norm", "seed", "loss", "epsilon", "last_norm")
EPSILON, DELTA = 3.0, 1e-5


def row(model: str, clipping: Any, norm: float, seed: int, **options: Any) -> dict[str, str]:
    """One training.

    Args:
        model: Its architecture.
        clipping: The way to clip.
        norm: The clipping norm, or the first one.
        seed: Of the weights, the batches and the noise.
        options: Of the Trainer.
    """
    seed_everything(seed)
    data = TextDataModule(window=32, batch_size=256)
    data.setup()
    sizes = {"hidden_size": 64, "embedding_size": 64, "num_layers": 1, "vocab_size": data.tokenizer.vocab_size}
    module = LanguageModel(model, **sizes, optimizer="adam", lr=0.005)  # type: ignore[arg-type]
    privacy = DifferentialPrivacy(
        target_epsilon=EPSILON,
        delta=DELTA,
        max_grad_norm=norm,
        clipping=clipping,
        accountant="rdp",
        seed=seed,
        verbose=False,
    )
    names = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    usual = {
        "max_epochs": 2,
        "num_sanity_val_steps": 0,
        "accelerator": "cpu",
        "devices": 1,
        **dict.fromkeys(names, False),
    }
    trainer = Trainer(callbacks=[privacy], **(usual | options))
    trainer.fit(module, data)
    loss = float(trainer.callback_metrics["val_loss"])
    found = (model, clipping, norm, seed, f"{loss:.4f}", f"{privacy.epsilon:.3f}", f"{privacy.norm_in_force.norm:.4g}")
    return dict(zip(COLUMNS, map(str, found), strict=True))


def summary(rows: Sequence[dict[str, str]]) -> Iterator[str]:
    """A table: a line for each model and way, a column for each norm; the mean loss over the seeds, and its range."""
    yield "| model | clipping | " + " | ".join(f"norm {norm:g}" for norm in NORMS) + " |"
    yield "|" + "---|" * (2 + len(NORMS))
    for model in MODELS:
        for way in WAYS:
            cells = []
            for norm in NORMS:
                key = (model, way, str(norm))
                losses = [float(one["loss"]) for one in rows if (one["model"], one["clipping"], one["norm"]) == key]
                cells.append(f"{np.mean(losses):.2f} ({min(losses):.2f} to {max(losses):.2f})" if losses else "")
            yield f"| {model} | {way} | " + " | ".join(cells) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clipping_loss", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=2, help="how many trainings of each kind")
    parser.add_argument("--csv", type=Path, required=True, help="the table; what it has is not computed again")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    rows: list[dict[str, str]] = []
    if options.csv.exists():
        with options.csv.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
    else:
        options.csv.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    known = {tuple(one[name] for name in COLUMNS[:4]) for one in rows}
    for seed in range(options.seeds):
        for model in MODELS:
            for way in WAYS:
                for norm in NORMS:
                    if (model, way, str(norm), str(seed)) not in known:
                        rows.append(row(model, way, norm, seed))
                        with options.csv.open("a", newline="", encoding="utf-8") as file:
                            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(rows[-1])
    print(*summary(rows), sep="\n")


if __name__ == "__main__":
    main()
