"""The orchestrator under a loop written by hand, and under several processes: no Trainer anywhere."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from lightning_exposure import CanarySet, SecretFormat, SecretTree, extract, measure_exposure
from lightning_exposure.errors import ArgumentError
from lightning_exposure.measuring import (
    Alone,
    CanaryAttack,
    CanaryAudit,
    CanaryTrees,
    ExposureMonitor,
    Moment,
    Schedule,
    SharedTrees,
    share_out,
)
from lightning_exposure.tokenization import CharTokenizer

PIN, KEY = SecretFormat("pin ###"), SecretFormat("key ??", name="key")
CHARS = CharTokenizer.from_text("pin key 0123456789 abcdefghijklmnopqrstuvwxyz")
CANARIES = CanarySet.draw([PIN, KEY], repetitions=[1, 8], seed=0)
COINS = CanarySet.draw(PIN, repetitions=[4] * 20, seed=0, holdout=0.5)


class Small(nn.Module):
    """A recurrent language model with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(CHARS.vocab_size, 12), nn.Dropout(0.2)
        self.cell, self.out = nn.GRU(12, 12, batch_first=True), nn.Linear(12, CHARS.vocab_size)

    def forward(self, tokens: torch.Tensor, state: Any = None) -> Any:
        features, state = self.cell(self.embed(tokens), state)
        return self.out(self.drop(features)), state


class Run:
    """A training loop of three epochs with everything in it, as one would write it."""

    def __init__(self, canaries: CanarySet, *, measure: bool = True, every_n_epochs: int = 1) -> None:
        torch.manual_seed(0)
        self.model, self.logged = Small(), list[tuple[int, Mapping[str, float]]]()
        around = Alone(log=lambda metrics, step: self.logged.append((step, metrics)))
        trees, schedule = CanaryTrees(canaries), Schedule(every_n_epochs)
        trees.build(SharedTrees(), self.model, CHARS)
        self.monitor = ExposureMonitor(trees, schedule, references=20)
        self.attack = CanaryAttack(trees, schedule, top_k=1)
        optimizer, moment = torch.optim.Adam(self.model.parameters(), lr=1e-2), Moment(0, 0)
        if measure:
            self.monitor.begin(around)
            self.attack.begin(self.model)
            self.monitor.take_baseline(self.model, around, moment)
        for epoch in range(3):
            for text in [canary.text for canary in canaries for _ in range(canary.copies)]:
                tokens = torch.tensor([CHARS.encode(text)])
                logits, _ = self.model(tokens[:, :-1])
                optimizer.zero_grad()
                nn.functional.cross_entropy(logits[0], tokens[0, 1:]).backward()
                optimizer.step()
                moment = Moment(epoch + 1, moment.step + 1)
            if measure:
                self.monitor.after_epoch(self.model, around, moment)
                self.attack.after_epoch(self.model, around, moment, {})
        if measure:
            self.monitor.finish(self.model, around, moment)
            self.attack.finish(self.model, around, moment, self._measured())

    def _measured(self) -> dict[str, Any]:
        return {estimate.secret: estimate for estimate in self.monitor.history[-1].estimates.values()}


@pytest.fixture(scope="module")
def run() -> Run:
    return Run(CANARIES)


class TestALoopWrittenByHand:
    def test_the_numbers_are_those_one_measures_by_hand(self, run: Run) -> None:
        last = run.monitor.history[-1]
        for format, canaries in CANARIES.by_format().items():
            tree = SecretTree(run.model, format, CHARS)
            by_hand = measure_exposure(tree, [canary.text for canary in canaries], precision=0.25)
            assert [last.estimates[canary.id] for canary in canaries] == by_hand
            assert run.attack.extractions[format.name].candidates == extract(tree).candidates
        references = run.monitor.scored_references
        assert {name: len(found.costs) for name, found in references.items()} == {"pin": 20, "key": 20}

    def test_what_is_logged_and_when(self, run: Run) -> None:
        steps = [measurement.step for measurement in run.monitor.history]
        assert steps == [18, 36, 54]
        assert [step for step, metrics in run.logged if "exposure/max" in metrics] == steps
        assert [step for step, metrics in run.logged if "extraction/extracted" in metrics] == steps
        newest = [metrics for _, metrics in run.logged if "exposure/max" in metrics][-1]
        assert newest == run.monitor.newest_metrics()
        assert set(run.attack.estimates) == {canary.id for canary in CANARIES}

    def test_the_weights_are_bit_for_bit_those_of_a_loop_without_it(self, run: Run) -> None:
        plain = Run(CANARIES, measure=False).model.state_dict()
        assert all(torch.equal(plain[name], value) for name, value in run.model.state_dict().items())

    def test_zero_is_only_at_the_end(self) -> None:
        run = Run(CANARIES[:2], every_n_epochs=0)
        assert [measurement.epoch for measurement in run.monitor.history] == [3]
        for name in ("exposure/max", "extraction/extracted"):
            assert sum(name in metrics for _, metrics in run.logged) == 1

    def test_a_state_goes_on(self, run: Run) -> None:
        again = ExposureMonitor(run.monitor.trees, Schedule(1))
        again.load_state_dict(run.monitor.state_dict())
        again.begin(Alone())
        assert (again.history, again.baseline_estimates) == (run.monitor.history, run.monitor.baseline_estimates)
        again.begin(Alone())
        assert (again.history, again.baseline_estimates) == ([], {})

    def test_an_audit(self) -> None:
        torch.manual_seed(0)
        model, around = Small(), Alone()
        trees = CanaryTrees(COINS)
        trees.build(SharedTrees(), model, CHARS)
        audit = CanaryAudit(trees, Schedule(0))
        audit.begin()
        audit.take_baseline(model, around)
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
        for canary in [*COINS.inserted] * 8:
            tokens = torch.tensor([CHARS.encode(canary.text)])
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens[:, :-1])[0][0], tokens[0, 1:]).backward()
            optimizer.step()
        metrics = audit.run(model, around, Moment(1, 80), delta=1e-5, promised=0.0)
        assert metrics["audit/auc"] > 0.6
        assert metrics["audit/alarm"] == float(audit.alarm)
        assert set(audit.scores) == {canary.id for canary in COINS}


class InThreads(Alone):
    """Several processes, played by threads."""

    def __init__(self, rank: int, barrier: threading.Barrier, table: list[Any], *, is_sharded: bool = False) -> None:
        super().__init__()
        self.rank, self.world_size, self.is_sharded = rank, barrier.parties, is_sharded
        self._barrier, self._table = barrier, table

    def gather(self, value: Any) -> list[Any]:
        self._table[self.rank] = value
        self._barrier.wait(30)
        found = list(self._table)
        self._barrier.wait(30)
        return found


def in_threads(work: Any, items: Sequence[int], *, world: int = 2, **options: Any) -> list[Any]:
    """What `share_out` gives or raises in each of the processes."""
    barrier, table = threading.Barrier(world), [None] * world
    found: list[Any] = [None] * world

    def one(rank: int) -> None:
        try:
            found[rank] = share_out(InThreads(rank, barrier, table, **options), items, lambda item: work(rank, item))
        except ValueError as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


class TestSeveralProcesses:
    def test_each_does_its_part_and_all_have_everything(self) -> None:
        done: list[tuple[int, int]] = []
        found = in_threads(lambda rank, item: done.append((rank, item)) or item * item, [3, 4, 5])
        assert found == [[9, 16, 25], [9, 16, 25]]
        assert sorted(done) == [(0, 3), (0, 5), (1, 4)]

    def test_where_a_forward_needs_all_of_them_all_do_everything(self) -> None:
        done: list[tuple[int, int]] = []
        found = in_threads(lambda rank, item: done.append((rank, item)) or item, [3, 4], is_sharded=True)
        assert found == [[3, 4], [3, 4]]
        assert len(done) == 4

    def test_an_error_in_one_of_them_is_raised_in_all(self) -> None:
        def work(rank: int, item: int) -> int:
            if rank == 1:
                raise ValueError("only here")
            return item

        assert [str(error) for error in in_threads(work, [3, 4])] == ["only here", "only here"]


class TestSchedule:
    def test_epochs(self) -> None:
        due = [Schedule(n).after_epoch(epoch, last=epoch == 7) for n in (0, 1, 3) for epoch in range(1, 8)]
        assert due == [False] * 6 + [True] + [True] * 7 + [False, False, True, False, False, True, True]

    def test_steps(self) -> None:
        assert not Schedule(1).after_step(4, 0)
        assert [Schedule(0, 4).after_step(step, step - 1) for step in range(1, 9)] == [False] * 3 + [True] + [
            False
        ] * 3 + [True]
        assert Schedule(0, 4).after_step(9, 7)  # several at once

    @pytest.mark.parametrize("given", [-1, 1.0, None, True, "1"])
    def test_epochs_out_of_range(self, given: Any) -> None:
        with pytest.raises(ArgumentError, match=r"every_n_epochs is .*; expected an integer of at least 0\. 0 is only"):
            Schedule(given)

    @pytest.mark.parametrize("given", [0, -1, 2.0, True])
    def test_steps_out_of_range(self, given: Any) -> None:
        with pytest.raises(ArgumentError, match=r"every_n_steps is .*; expected an integer of at least 1\. None"):
            Schedule(1, given)
