"""Exposure in Weights & Biases: curves for every canary, the histogram of references and the table of the attack.

Without a login the run goes to local files; `wandb sync` uploads them later.
"""

from __future__ import annotations

import argparse

import lightning.pytorch as pl
from existing_script import ALPHABET, WINDOW, CharModel, encode, windows
from lightning.pytorch.loggers import WandbLogger
from torch.utils.data import DataLoader

from lightning_exposure import (
    CanaryDataModule,
    CanarySet,
    CharTokenizer,
    ExposureCallback,
    ExtractionCallback,
    SecretFormat,
)
from lightning_exposure.report.wandb import stay_offline_without_login


def main() -> None:
    """Train, measure, attack."""
    parser = argparse.ArgumentParser(description="Exposure in Weights & Biases.")
    parser.add_argument("--fast", action="store_true", help="a minute's work in seconds: less text, a smaller model")
    parser.add_argument("--project", default="lightning-exposure", help="of W&B (default: %(default)s)")
    parser.add_argument("--save_dir", default=".", help="where W&B keeps its files (default: here)")
    options = parser.parse_args()

    pl.seed_everything(0)
    canaries = CanarySet.draw(SecretFormat.pin(6), repetitions=[1, 4, 16], seed=0)
    loader = DataLoader(windows(20_000 if options.fast else 400_000), batch_size=32, shuffle=True)
    tokenizer = CharTokenizer(ALPHABET)
    logger = WandbLogger(project=options.project, save_dir=options.save_dir)
    stay_offline_without_login([logger])
    trainer = pl.Trainer(
        max_epochs=1 if options.fast else 10,
        logger=logger,
        enable_checkpointing=False,
        callbacks=[ExposureCallback(canaries, tokenizer), ExtractionCallback(canaries, tokenizer)],
        log_every_n_steps=10,
    )
    trainer.fit(
        CharModel(hidden_size=32 if options.fast else 128),
        CanaryDataModule(loader, canaries, encode=lambda text: encode(text.ljust(WINDOW + 1))),
    )
    logger.experiment.finish()


if __name__ == "__main__":
    main()
