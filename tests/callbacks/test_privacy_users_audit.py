"""A user with k canary records: what is promised to a record does not hold for him; what is promised to him does."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure import (
    AuditCallback,
    CanaryDataModule,
    CanarySet,
    DifferentialPrivacy,
    SecretFormat,
    WordTokenizer,
)
from lightning_exposure.callbacks import AuditWarning
from lightning_exposure.privacy import audit, per_example_loss
from tests.callbacks.privacy_setups import trainer

WORDS = [f"w{number}" for number in range(400)]
TOKENS = WordTokenizer(["<unk>", "<eos>", "says", *WORDS])
CODES = SecretFormat("says {word} {word}", word=WORDS)
COPIES = 8
CANARIES = CanarySet.draw(CODES, repetitions=[COPIES] * 300, seed=0, holdout=0.5)
OTHERS = 200
EPSILON = 1.0


class Bigrams(L.LightningModule):
    """A table of what follows a word. Every canary has places of its own in it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS.vocab_size, TOKENS.vocab_size)
        nn.init.zeros_(self.table.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.table(tokens)
        return logits

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        (tokens,) = batch
        return per_example_loss(self(tokens), tokens)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=20.0)


def encode(text: str) -> tuple[Tensor, ...]:
    return (torch.tensor(TOKENS.encode(text)),)


def run(folder: Path, epsilon: float = EPSILON, **unit: Any) -> tuple[AuditCallback, DifferentialPrivacy]:
    """Twenty steps with everybody in every batch, so that nothing hides a canary but noise."""
    others = torch.randint(3, TOKENS.vocab_size, (OTHERS, 3), generator=torch.Generator().manual_seed(0))
    plain = DataLoader(TensorDataset(others), batch_size=4000)
    looking = AuditCallback(CANARIES, TOKENS)
    private = DifferentialPrivacy(
        target_epsilon=epsilon, max_grad_norm=0.5, delta=1e-5, accountant="rdp", seed=0, verbose=False, **unit
    )
    trainer(folder, private, looking, max_epochs=20).fit(Bigrams(), CanaryDataModule(plain, CANARIES, encode))
    assert private.epsilon <= epsilon
    return looking, private


def for_one_user(looking: AuditCallback) -> float:
    """What the guesses prove for a canary with all its records."""
    scores = looking._audit.scores
    inside, outside = ([scores[c.id] for c in CANARIES if c.held_out is out] for out in (False, True))
    return audit(inside, outside, delta=1e-5).epsilon_lower


def test_the_epsilon_of_a_record_does_not_hold_for_a_user_with_several(tmp_path: Path) -> None:
    looking, private = run(tmp_path)
    assert for_one_user(looking) > 1.5 * EPSILON >= 1.5 * private.epsilon
    # It was not promised to him either: the audit knows that a canary is eight records.
    assert looking.records == COPIES
    assert not looking.alarm


@pytest.mark.parametrize(("epsilon", "proven"), [(EPSILON, 0.0), (8.0, 1.0)])
def test_the_epsilon_of_a_user_does(epsilon: float, proven: float, tmp_path: Path) -> None:
    """And where there is more to see, more is seen: it is not the audit that fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", AuditWarning)
        looking, private = run(tmp_path, epsilon, unit="user", user=range(OTHERS), max_records_per_user=COPIES)
    assert looking.records == 1
    assert looking.result is not None
    assert looking.result.epsilon_lower == for_one_user(looking)
    assert proven <= looking.result.epsilon_lower <= private.epsilon
    assert not looking.alarm
