"""What differential privacy does to a secret: the paper's Table 7 in small, one Trainer for each setting.

`lightning-exposure compare` does the same with more options; this is how to do it with a model of your own.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from existing_script import ALPHABET, WINDOW, CharModel, encode, windows
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_exposure import (
    CanaryDataModule,
    CanarySet,
    CharTokenizer,
    DifferentialPrivacy,
    ExposureCallback,
    ExtractionCallback,
    SecretFormat,
)
from lightning_exposure.report.comparison import Comparison, Outcome
from lightning_exposure.report.figures.against_epsilon import exposure_against_epsilon
from lightning_exposure.report.figures.style import save

PRIVACY: dict[str, Any] = {"max_grad_norm": 1.0, "delta": 1e-5, "verbose": False}
CANARIES = CanarySet.draw(SecretFormat.pin(6), repetitions=[4], seed=0)


class Model(CharModel):
    """The same model with another optimizer."""

    def __init__(self, optimizer: str, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.optimizer = optimizer

    def configure_optimizers(self) -> Any:
        """RMSProp, or plain gradient descent."""
        if self.optimizer == "rmsprop":
            return torch.optim.RMSprop(self.parameters(), lr=0.003)
        return torch.optim.SGD(self.parameters(), lr=2.0)


def train(optimizer: str, noise: float | None, epochs: int, letters: int, hidden_size: int) -> Outcome:
    """Train with a noise multiplier (0: clip only; None: no privacy), measure, attack."""
    pl.seed_everything(0, verbose=False)
    text = windows(letters)
    train_data, test_data = text[: -len(text) // 10], text[-len(text) // 10 :]
    data = CanaryDataModule(
        DataLoader(train_data, batch_size=64, shuffle=True),
        CANARIES,
        encode=lambda text: encode(text.ljust(WINDOW + 1)),
    )
    tokenizer = CharTokenizer(ALPHABET)
    exposure = ExposureCallback(CANARIES, tokenizer, every_n_epochs=epochs)
    attack = ExtractionCallback(CANARIES, tokenizer, verbose=False, budget=100_000)
    callbacks: list[pl.Callback] = [exposure, attack]
    # The only line that differs between the settings.
    privacy = None if noise is None else DifferentialPrivacy(noise_multiplier=noise, **PRIVACY)
    if privacy is not None:
        callbacks.append(privacy)
    model = Model(optimizer, hidden_size)
    trainer = pl.Trainer(
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    start = time.perf_counter()
    trainer.fit(model, data)
    seconds = time.perf_counter() - start
    return Outcome(
        optimizer=optimizer,
        noise_multiplier=noise,
        epsilon=math.inf if privacy is None else privacy.epsilon,
        test_loss=mean_loss(model, torch.stack(test_data)),
        exposure=exposure.history[-1].estimates[CANARIES[0].id],
        extracted=bool(attack.extracted),
        proven=all(found.optimal for found in attack.extractions.values()),
        seconds=seconds,
    )


def mean_loss(model: CharModel, text: Tensor) -> float:
    """Of text that the model was not trained on, in nats per character."""
    with torch.no_grad():
        logits = model.eval()(text[:, :-1])
        return float(nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()))


def draw(comparison: Comparison, directory: str) -> Path:
    """Exposure and test loss against epsilon."""
    return save(exposure_against_epsilon(comparison), Path(directory) / "comparison.png")


def main() -> None:
    """Train once for each setting, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="minutes' work in seconds: less text, a smaller model")
    parser.add_argument("--noise_multiplier", type=float, nargs="+", default=[0.1, 1.0], help="(default: 0.1 1)")
    parser.add_argument("--save_dir", help="leave the numbers, a CSV file and the picture here")
    options = parser.parse_args()
    size = {"epochs": 1, "letters": 20_000, "hidden_size": 32} if options.fast else {
        "epochs": 20, "letters": 300_000, "hidden_size": 128,
    }  # fmt: skip
    settings = [(name, noise) for name in ("rmsprop", "sgd") for noise in (None, 0.0, *options.noise_multiplier)]
    comparison = Comparison([train(name, noise, **size) for name, noise in settings])
    print(comparison.table())
    print(f"{comparison.verdict}.")
    print(
        f"Epsilon is per record; the secret is {CANARIES[0].repetitions} of them, for which it is as many times larger."
    )
    if options.save_dir is not None:
        print(
            f"saved: {comparison.save(options.save_dir)} and a CSV file beside it; {draw(comparison, options.save_dir)}"
        )


if __name__ == "__main__":
    main()
