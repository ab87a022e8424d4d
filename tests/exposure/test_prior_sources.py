"""Priors from modules, checkpoints, models without their adapters, and weights of before."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from lightning_exposure import SecretFormat, SecretTree, measure_exposure
from lightning_exposure.errors import ArgumentError, ManifestError
from lightning_exposure.exposure import (
    prior_from_model,
    weights_of_checkpoint,
    weights_on_cpu,
    with_weights,
    without_adapters,
)
from lightning_exposure.modules import LanguageModel
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.walks import score
from tests.cases import CHARACTERS
from tests.toys import Recurrent, sharpened

CHARS = CharTokenizer.from_text(CHARACTERS)
PIN = SecretFormat("pin ##")
SECRETS = ["pin 12", "pin 77"]


def moved(module: nn.Module) -> nn.Module:
    """The module after some training, as it were."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3)
    return module


def test_a_model_and_the_weights_of_before() -> None:
    model = sharpened(Recurrent(CHARS.vocab_size), 1)
    before = SecretTree(sharpened(Recurrent(CHARS.vocab_size), 1), PIN, CHARS)
    kept = weights_on_cpu(model)
    moved(model).train()
    tree = SecretTree(model, PIN, CHARS)
    expected = measure_exposure(tree, SECRETS, prior=before)
    assert measure_exposure(tree, SECRETS, prior=prior_from_model(with_weights(model, kept), tree)) == expected
    assert expected != measure_exposure(tree, SECRETS, prior=prior_from_model(model, tree))
    assert all(value.device.type == "cpu" for value in kept.values())
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(ArgumentError, match=r"weights do not fit Linear: .*Expected those of a module of the same"):
        with_weights(nn.Linear(2, 2), kept)


def test_a_checkpoint_of_lightning_and_a_plain_one(tmp_path: Path) -> None:
    model = LanguageModel("gru", vocab_size=CHARS.vocab_size, hidden_size=8, embedding_size=8, num_layers=1)
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, enable_model_summary=False, barebones=False)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(tmp_path / "lightning.ckpt", weights_only=True)
    torch.save(model.state_dict(), tmp_path / "plain.pt")
    costs = score(SecretTree(model, PIN, CHARS), SECRETS).costs.tolist()
    moved(model)
    for name in ("lightning.ckpt", "plain.pt"):
        reference = with_weights(model, weights_of_checkpoint(tmp_path / name))
        prior = prior_from_model(reference, SecretTree(model, PIN, CHARS))
        assert score(prior, SECRETS).costs.tolist() == costs
    torch.save([1, 2], tmp_path / "numbers.pt")
    with pytest.raises(ManifestError, match=r"numbers\.pt: holds no weights; expected a checkpoint"):
        weights_of_checkpoint(tmp_path / "numbers.pt")
    (tmp_path / "text.ckpt").write_text("no checkpoint")
    with pytest.raises(ManifestError, match=r"text\.ckpt: not a checkpoint"):
        weights_of_checkpoint(tmp_path / "text.ckpt")


def test_adapters_are_off_only_while_the_reference_reads() -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=CHARS.vocab_size, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        base = GPT2LMHeadModel(config).eval()
        pretrained = score(SecretTree(base, PIN, CHARS), SECRETS).costs.tolist()
        lora = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
        model = get_peft_model(base, lora)
    frozen = next(p for name, p in model.named_parameters() if "lora_A" in name).requires_grad_(False)
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    tree = SecretTree(model, PIN, CHARS)
    prior = prior_from_model(without_adapters(model), tree)
    assert score(prior, SECRETS).costs.tolist() == pytest.approx(pretrained, abs=1e-5)
    fine_tuned = score(tree, SECRETS).costs.tolist()
    assert fine_tuned != pytest.approx(pretrained, abs=1e-3)
    first, _ = measure_exposure(tree, SECRETS, prior=prior)
    assert first.log_perplexity == pytest.approx(fine_tuned[0], abs=1e-5), "the model itself reads with them"
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == trained
    assert not frozen.requires_grad
    with pytest.raises(ArgumentError, match=r"model is Linear, in which nothing has disable_adapter\(\)"):
        without_adapters(nn.Linear(2, 2))
