"""A prior in a training loop written by hand: no Trainer anywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lightning_exposure import CanarySet, SecretFormat, SecretTree, measure_exposure
from lightning_exposure.errors import ArgumentError
from lightning_exposure.measuring import Alone, CanaryTrees, ExposureMonitor, Moment, Schedule, SharedTrees
from lightning_exposure.tokenization import CharTokenizer

PIN, KEY = SecretFormat("pin ###"), SecretFormat("key ??", name="key")
CHARS = CharTokenizer.from_text("pin key 0123456789 abcdefghijklmnopqrstuvwxyz")
CANARIES = CanarySet.draw([PIN, KEY], repetitions=[1, 8], seed=0)


class Small(nn.Module):
    """A recurrent language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CHARS.vocab_size, 12)
        self.cell, self.out = nn.GRU(12, 12, batch_first=True), nn.Linear(12, CHARS.vocab_size)

    def forward(self, tokens: torch.Tensor, state: Any = None) -> Any:
        features, state = self.cell(self.embed(tokens), state)
        return self.out(features), state


class TestAPriorInALoopWrittenByHand:
    """The prior of the weights before training, without a Trainer: the same numbers, and a state that goes on."""

    @staticmethod
    def monitor(model: nn.Module, prior: Any) -> ExposureMonitor:
        trees = CanaryTrees(CANARIES)
        trees.build(SharedTrees(), model, CHARS)
        return ExposureMonitor(trees, Schedule(1), references=0, baseline=False, prior=prior)

    @staticmethod
    def trained(steps: int, model: Small | None = None) -> Small:
        torch.manual_seed(1)
        model = Small() if model is None else model
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step in range(steps):
            format = (PIN, KEY)[step % 2]
            tokens = torch.tensor([CHARS.encode(text) for text in format.sample(16, step)])
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens[:, :-1])[0].transpose(1, 2), tokens[:, 1:]).backward()
            optimizer.step()
        return model

    def test_numbers_and_state(self) -> None:
        model, before = self.trained(60), self.trained(60)
        monitor, around = self.monitor(model, "before_training"), Alone()
        monitor.begin(around)
        self.trained(20, model)
        monitor.after_epoch(model, around, Moment(1, 20))
        state = monitor.state_dict()
        # Another process goes on, with the weights as they are by now.
        resumed = self.monitor(model, "before_training")
        resumed.load_state_dict(state)
        resumed.begin(around)
        resumed.after_epoch(model, around, Moment(2, 40))
        for format, canaries in CANARIES.by_format().items():
            prior = SecretTree(before, format, CHARS)
            texts = [canary.text for canary in canaries]
            by_hand = measure_exposure(SecretTree(model, format, CHARS), texts, prior=prior, precision=0.25)
            for found in (monitor.history[-1], resumed.history[-1]):
                assert found.prior == "before_training"
                assert [found.estimates[canary.id] for canary in canaries] == by_hand

    def test_a_run_that_kept_nothing_cannot_go_on(self) -> None:
        model = self.trained(60)
        monitor = self.monitor(model, None)
        monitor.begin(Alone())
        monitor.after_epoch(model, Alone(), Moment(1, 1))
        resumed = self.monitor(model, "before_training")
        resumed.load_state_dict(monitor.state_dict())
        with pytest.raises(ArgumentError, match=r"the run that goes on has not kept the weights of before it"):
            resumed.begin(Alone())

    def test_a_model_that_each_process_holds_a_part_of_cannot_be_copied(self) -> None:
        class Sharded(Alone):
            is_sharded = True

        with pytest.raises(ArgumentError, match=r"each process holds only a part of the model.*Give a module as prior"):
            self.monitor(self.trained(1), "before_training").begin(Sharded())
