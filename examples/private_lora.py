"""DP-LoRA: a model that was trained on public text is adapted to private text, and only the adapters learn, privately.

A tiny GPT-2 is built from a configuration and trained on one half of a text, as a stand-in for a pretrained model. Then
adapters (LoRA, by PEFT) are trained on the other half, which has made-up secrets in it: once without privacy and once
with it. With a pretrained model, only `pretrained` changes: `AutoModelForCausalLM.from_pretrained(directory)`.
"""

from __future__ import annotations

import argparse
import time
from copy import deepcopy
from typing import Any

import lightning.pytorch as pl
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from lightning_exposure import (
    CanaryDataModule,
    CanarySet,
    CharTokenizer,
    DifferentialPrivacy,
    ExposureCallback,
    SecretFormat,
)
from lightning_exposure.data.corpora import python_topics
from lightning_exposure.privacy import per_example_loss

WINDOW = 48
DELTA = 1e-5


class FineTuning(pl.LightningModule):
    """The usual module around a Hugging Face model; it trains what is trainable."""

    def __init__(self, model: Any, learning_rate: float) -> None:
        super().__init__()
        self.model, self.learning_rate = model, learning_rate

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """The mean over the tokens of each example, and then over examples: no example weighs on another one."""
        return per_example_loss(self.model(input_ids=batch["ids"]).logits, batch["labels"])

    def configure_optimizers(self) -> Any:
        """AdamW."""
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=self.learning_rate)


def pretrained(tokenizer: CharTokenizer, width: int, layers: int) -> Any:
    """A GPT-2 from scratch, in the place of one that somebody has trained on public text."""
    sizes: dict[str, Any] = {"n_positions": WINDOW, "n_embd": width, "n_layer": layers, "n_head": 4}
    dropouts = dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"], 0.0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=tokenizer.vocab_size, **sizes, **dropouts, **ends))


def adapted(model: Any, rank: int) -> Any:
    """The same with adapters, which alone are trainable."""
    adapters = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    return get_peft_model(deepcopy(model), adapters).train()


def example(tokenizer: CharTokenizer, text: str) -> dict[str, Tensor]:
    """One window: shorter texts are filled up, and the filling is not learned."""
    ids = tokenizer.encode(text)
    filling = WINDOW - len(ids)
    return {"ids": torch.tensor(ids + [0] * filling), "labels": torch.tensor(ids + [-100] * filling)}


def windows(tokenizer: CharTokenizer, text: str) -> list[dict[str, Tensor]]:
    """The text in pieces, which are the records."""
    return [example(tokenizer, text[place : place + WINDOW]) for place in range(0, len(text), WINDOW)]


def fit(module: FineTuning, data: Any, epochs: int, *callbacks: pl.Callback) -> None:
    """Train quietly."""
    torch.manual_seed(0)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )
    trainer.fit(module, data)


def mean_loss(model: Any, examples: list[dict[str, Tensor]]) -> float:
    """Of text that nothing was trained on, in nats per character."""
    ids, labels = (torch.stack([one[name] for one in examples]) for name in ("ids", "labels"))
    with torch.no_grad():
        return float(per_example_loss(model.eval()(input_ids=ids).logits, labels))


def main() -> None:
    """Pretrain, adapt with and without privacy, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="a minute's work in seconds: less text, a smaller model")
    parser.add_argument("--target_epsilon", type=float, default=8.0, help="of the private run (default: %(default)s)")
    options = parser.parse_args()
    fast = options.fast
    start = time.perf_counter()

    pl.seed_everything(0, verbose=False)
    letters, epochs = (8_000, 1) if fast else (60_000, 5)
    text = python_topics()[: 2 * letters + letters // 5]
    public, private, test = text[:letters], text[letters : 2 * letters], text[2 * letters :]
    canaries = CanarySet.draw(SecretFormat("my pin is ####"), repetitions=[1, 16], seed=0)
    tokenizer = CharTokenizer.from_text(text, "0123456789", "my pin is ")

    base = pretrained(tokenizer, *((32, 1) if fast else (96, 2)))
    fit(FineTuning(base, 2e-3), DataLoader(windows(tokenizer, public), batch_size=32, shuffle=True), epochs)
    held_out = windows(tokenizer, test)
    print(f"a GPT-2 with {base.num_parameters():,} parameters, trained on public text")
    print(f"as it is:       test loss {mean_loss(base, held_out):.3f}")

    privacy = DifferentialPrivacy(
        target_epsilon=options.target_epsilon, max_grad_norm=1.0, delta=DELTA, seed=0, verbose=False
    )
    for name, batch_size, defence in (("LoRA:   ", 32, []), ("DP-LoRA:", 128, [privacy])):
        model = adapted(base, rank=8)
        records = DataLoader(windows(tokenizer, private), batch_size=batch_size, shuffle=True)
        data = CanaryDataModule(records, canaries, encode=lambda secret: example(tokenizer, secret))
        exposure = ExposureCallback(canaries, tokenizer, every_n_epochs=2 * epochs)
        fit(FineTuning(model, 5e-3), data, 2 * epochs, exposure, *defence)
        found = exposure.history[-1].estimates.items()
        bits = ", ".join(f"{canary} {estimate.bits:.1f}" for canary, estimate in found)
        spent = f"epsilon {privacy.epsilon:.2f} at delta {DELTA:g}" if defence else "no epsilon"
        print(f"with {name}   test loss {mean_loss(model, held_out):.3f}, {spent}, exposure in bits: {bits}")
    trained, of = model.get_nb_trainable_parameters()
    print(f"adapters: {trained:,} of {of:,} parameters")
    print("Epsilon is per record: a secret that stands in 16 records is promised 16 times as much only.")
    print(f"{time.perf_counter() - start:.0f} seconds")


if __name__ == "__main__":
    main()
