"""Private training in one line is what a hand-written loop with Opacus is, weight by weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_exposure.privacy import PoissonLoader, generators
from tests.callbacks.privacy_setups import STEPS, Data, Module, by_hand, loss_of, privacy, same, trainer, weights

# Opacus, about the first layer of a model, whose inputs have no gradients.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
    pytest.mark.filterwarnings("ignore:Using a non-full backward hook:FutureWarning"),  # Opacus 1.5
]


def trained(folder: Path, kind: str, optimizer: str, **settings: Any) -> Any:
    module = Module(kind, optimizer)
    trainer(folder, privacy(**settings)).fit(module, Data())
    return module


@pytest.mark.parametrize("kind", ["lstm", "gru", "layers", "transformer"])
def test_the_weights_are_those_of_a_loop_with_opacus(kind: str, tmp_path: Path) -> None:
    found = weights(trained(tmp_path, kind, "sgd").net)
    for name, value in by_hand(Module(kind).net, "sgd").items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(found[name], weights(Module(kind).net)[name], atol=1e-3)


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam", "adamw"])
def test_with_any_optimizer(optimizer: str, tmp_path: Path) -> None:
    found = weights(trained(tmp_path, "layers", optimizer).net)
    for name, value in by_hand(Module("layers").net, optimizer).items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5)


def test_a_seed_repeats_a_run_and_another_seed_or_none_does_not(tmp_path: Path) -> None:
    first, again, other, none, nothing = (
        weights(trained(tmp_path, "layers", "sgd", seed=seed)) for seed in (3, 3, 4, None, None)
    )
    assert same(first, again)
    assert not same(first, other)
    assert not same(none, nothing)


def test_with_wide_clipping_and_no_noise_it_is_plain_training_on_the_same_batches(tmp_path: Path) -> None:
    module = trained(tmp_path, "lstm", "sgd", noise_multiplier=0, max_grad_norm=1e6)
    passes = iter(range(2))
    loader = PoissonLoader(
        Data().train_dataloader(), generator=lambda: generators(3, steps=next(passes) * STEPS).sampling
    )
    plain = Module("lstm", "sgd")
    optimizer = plain.configure_optimizers()
    for _ in range(2):
        for (batch,) in loader:
            optimizer.zero_grad()
            # The mean is over the number of records that is expected, not over those that were drawn.
            (loss_of(plain.net, batch) * len(batch) / loader.batch_size).backward()
            optimizer.step()
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(module)[name], value, rtol=1e-4, atol=1e-5)


def test_huge_noise_destroys_the_model(tmp_path: Path) -> None:
    batch = next(iter(Data().val_dataloader()))[0]
    untrained, noisy = Module(), trained(tmp_path, "layers", "sgd", noise_multiplier=1000.0)
    assert loss_of(noisy.net, batch) > 10 * loss_of(untrained.net, batch)


def test_tiny_clipping_freezes_the_model(tmp_path: Path) -> None:
    before, after = weights(Module()), weights(trained(tmp_path, "layers", "sgd", max_grad_norm=1e-9))
    assert all((after[name] - before[name]).abs().max() < 1e-7 for name in before)
    assert not same(before, weights(trained(tmp_path, "layers", "sgd")))
