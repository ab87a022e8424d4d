"""A Hugging Face model in a LightningModule, trained with canaries in its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from lightning_exposure import CanarySet, ExposureCallback, ExtractionCallback, SecretTree, measure_exposure
from lightning_exposure.adapters.huggingface.adapter import HuggingFaceAdapter
from tests.callbacks.setups import CHARS, PIN, loader, trainer

CANARIES = CanarySet.draw(PIN, repetitions=[1, 40], seed=0)
OFTEN = CANARIES[1]


class Finetuning(L.LightningModule):
    """As most people write it: the language model is an attribute, and there is no forward."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm = lm

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss: Tensor = self.lm(batch[0], labels=batch[0]).loss
        self.log("train_loss", loss, on_epoch=True, on_step=False)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW((p for p in self.parameters() if p.requires_grad), lr=1e-2)


def small_gpt2() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=CHARS.vocab_size, n_positions=32, n_embd=24, n_layer=2, n_head=2,
                bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM",
            )
        )  # fmt: skip


def fit(
    folder: Path, model: Finetuning, *callbacks: L.Callback, epochs: int, canaries: CanarySet = CANARIES
) -> L.Trainer:
    torch.manual_seed(0)
    run = trainer(folder, *callbacks, max_epochs=epochs)
    run.fit(model, loader(canaries, copies=20))
    return run


def test_exposure_rises_and_what_was_repeated_is_extracted(tmp_path: Path) -> None:
    exposure, extraction = ExposureCallback(CANARIES, CHARS), ExtractionCallback(CANARIES, CHARS)
    model = Finetuning(small_gpt2())
    run = fit(tmp_path, model, exposure, extraction, epochs=12)
    bits = [measurement.estimates[OFTEN.id].bits for measurement in exposure.history]
    assert bits[-1] > exposure.baseline_estimates[OFTEN.id].bits + 3
    assert bits[-1] == run.callback_metrics[f"exposure/{OFTEN.id}"] == pytest.approx(PIN.bits)
    found = extraction.extractions[PIN.name]
    assert found.candidates[0].text == OFTEN.text
    assert found.optimal


def test_the_weights_are_the_same_bit_for_bit_without_the_callbacks(tmp_path: Path) -> None:
    plain, watched = Finetuning(small_gpt2()), Finetuning(small_gpt2())
    plain.lm.gradient_checkpointing_enable()
    watched.lm.gradient_checkpointing_enable()
    fit(tmp_path, plain, epochs=2)
    fit(tmp_path, watched, ExposureCallback(CANARIES, CHARS), ExtractionCallback(CANARIES, CHARS), epochs=2)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name]), name
    assert vars(plain.lm.config) == vars(watched.lm.config)


def test_the_baseline_of_an_adapter_that_has_learned_nothing_yet_is_the_base_model(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    base = Finetuning(small_gpt2())
    fit(tmp_path, base, epochs=3, canaries=CanarySet.draw(PIN, repetitions=[1] * 20, seed=9))
    expected = measure_exposure(SecretTree(base.lm, PIN, CHARS), list(CANARIES.texts))
    adapted = get_peft_model(base.lm, LoraConfig(r=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True))
    now = ExposureCallback(CANARIES, CHARS, precision=None)
    before = ExposureCallback(
        CANARIES,
        CHARS,
        name="base",
        seed=1,
        precision=None,
        model=lambda module: HuggingFaceAdapter(module.lm, adapters=False),
    )
    fit(tmp_path, Finetuning(adapted), now, before, epochs=6)
    wanted = [estimate.bits for estimate in expected]
    assert [estimate.bits for estimate in now.baseline_estimates.values()] == pytest.approx(wanted, abs=1e-6)
    # Long after, the base model inside is still what it was; the adapter has learned.
    assert [estimate.bits for estimate in before.history[-1].estimates.values()] == pytest.approx(wanted, abs=1e-6)
    assert now.history[-1].estimates[OFTEN.id].bits > now.baseline_estimates[OFTEN.id].bits + 2
