"""A Hugging Face GPT-2 with a byte-level BPE tokenizer, trained in Lightning with canaries in its data.

Nothing is downloaded: the tokenizer is trained on the spot and the model is built from a configuration. With a
pretrained one, only `make_tokenizer` and `make_model` change: `AutoTokenizer.from_pretrained(directory)` and
`AutoModelForCausalLM.from_pretrained(directory)`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import lightning.pytorch as pl
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from lightning_exposure import CanaryDataModule, CanarySet, ExposureCallback, ExtractionCallback, SecretFormat
from lightning_exposure.data.corpora import python_topics

WINDOW = 64
IGNORED = -100


def make_tokenizer(text: str, size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer like GPT-2's, trained on the text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>")


def make_model(tokenizer: PreTrainedTokenizerFast, width: int, layers: int) -> GPT2LMHeadModel:
    """A GPT-2 from scratch."""
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=128,
        n_embd=width,
        n_layer=layers,
        n_head=8,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # what it computes anyway, without a remark
    return model


class FineTuning(pl.LightningModule):
    """The usual module around a Hugging Face model: it knows nothing of canaries."""

    def __init__(self, model: GPT2LMHeadModel) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """The loss that the model itself computes."""
        loss: Tensor = self.model(**batch).loss
        self.log("train_loss", loss, on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def example(ids: list[int]) -> dict[str, Tensor]:
    """One window: shorter texts are filled up, and the filling is not learned."""
    filling = WINDOW - len(ids)
    return {
        "input_ids": torch.tensor([*ids, *[0] * filling]),
        "attention_mask": torch.tensor([1] * len(ids) + [0] * filling),
        "labels": torch.tensor([*ids, *[IGNORED] * filling]),
    }


def main() -> None:
    """Train, measure, attack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="minutes' work in seconds: less text, a smaller model")
    parser.add_argument("--epochs", type=int, help="how often the text is read (default: 15; with --fast 1)")
    options = parser.parse_args()
    fast = options.fast
    start = time.perf_counter()

    pl.seed_everything(0, verbose=False)
    text = python_topics()[: 20_000 if fast else 100_000]
    tokenizer = make_tokenizer(text, 600 if fast else 2000)
    module = FineTuning(make_model(tokenizer, *((32, 2) if fast else (256, 6))))
    print(f"a GPT-2 with {module.model.num_parameters():,} parameters, {len(tokenizer):,} tokens")

    canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=[1, 4, 16], seed=0)
    ids = tokenizer.encode(text)
    windows = [example(ids[place : place + WINDOW]) for place in range(0, len(ids), WINDOW)]
    data = CanaryDataModule(
        DataLoader(windows, batch_size=8, shuffle=True),
        canaries,
        encode=lambda secret: example(tokenizer.encode(secret)),
    )
    # A walk costs what the model costs: fewer of them for a large one, and wider intervals.
    exposure = ExposureCallback(
        canaries, tokenizer, every_n_epochs=1 if fast else 3, samples=512, max_share=None, budget=20_000
    )
    attack = ExtractionCallback(canaries, tokenizer, top_k=1, budget=2_000 if fast else 1_000_000)
    trainer = pl.Trainer(
        max_epochs=options.epochs or (1 if fast else 15),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[exposure, attack],
    )
    trainer.fit(module, data)

    for measurement in exposure.history:
        found = measurement.estimates.items()
        # A sample leaves an interval, and sometimes no more than a bound.
        bits = ", ".join(f"{name} {estimate.low:.1f} to {estimate.high:.1f}" for name, estimate in found)
        print(f"epoch {measurement.epoch}: loss {measurement.train_loss:.3f}, exposure in bits: {bits}")
    for name, verdict in attack.verdicts.items():
        print(f"{name} extracted: {verdict}")
    print(f"{time.perf_counter() - start:.0f} seconds")


if __name__ == "__main__":
    main()
