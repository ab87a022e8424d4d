"""What is saved beside the weights: counters of steps go on, and what knows the data is refused, by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from lightning_exposure.callbacks.private.watching._batches import part_of
from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.saved_state import SavedState
from tests.callbacks.privacy_setups import STEPS, VOCAB, WIDTH, Data, Module, privacy, same, trainer, weights

LATE = STEPS + 2


class Stateful(Module):  # type: ignore[misc, valid-type]
    """Has a buffer, and lets a subclass write to it."""

    kind: Any = torch.float32
    start: Any = 0

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.tensor(self.start, dtype=self.kind))

    def update(self, tokens: Tensor, loss: Tensor) -> None:
        pass

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.update(batch[0], loss.detach())
        return loss


def with_update(update: Any, kind: Any = torch.float32, start: Any = 0, **hooks: Any) -> Any:
    """A module whose buffer is changed so in every training step."""
    return type("Made", (Stateful,), {"update": update, "kind": kind, "start": start, **hooks})()


def late(self: Any) -> bool:
    return bool(self.trainer.global_step >= LATE)


# ---- what knows the data --------------------------------------------------------------------------------------


def running_mean(self: Any, tokens: Tensor, loss: Tensor) -> None:
    self.kept.mul_(0.9).add_(0.1 * loss)


def examples(self: Any, tokens: Tensor, loss: Tensor) -> None:
    self.kept += len(tokens)


def a_token(self: Any, tokens: Tensor, loss: Tensor) -> None:
    self.kept += (tokens == 3).sum()


def largest(self: Any, tokens: Tensor, loss: Tensor) -> None:
    self.kept.copy_(torch.maximum(self.kept, tokens.sum()))


def late_mean(self: Any, tokens: Tensor, loss: Tensor) -> None:
    if late(self):
        self.kept.copy_(loss)


def late_count(self: Any, tokens: Tensor, loss: Tensor) -> None:
    self.kept += len(tokens) if late(self) else 1


def once(self: Any, tokens: Tensor, loss: Tensor) -> None:
    if self.trainer.global_step == LATE:
        self.kept.copy_(tokens.sum())


def at_the_end(self: Any, tokens: Tensor, loss: Tensor) -> None:
    if self.trainer.global_step == 3 * STEPS - 1:
        self.kept.copy_(tokens.sum())


def exchanged(self: Any, tokens: Tensor, loss: Tensor) -> None:
    self.kept = self.kept + loss


@pytest.mark.parametrize(
    ("update", "kind"),
    [
        (running_mean, torch.float32),
        (running_mean, torch.float64),
        (exchanged, torch.float32),
        (examples, torch.int64),
        (examples, torch.float32),
        (a_token, torch.int64),
        (a_token, torch.int32),
        (largest, torch.int64),
        (late_mean, torch.float32),
        (late_count, torch.int64),
        (once, torch.int64),
        (at_the_end, torch.int64),
    ],
)
def test_a_buffer_that_knows_the_data_is_refused(update: Any, kind: Any, tmp_path: Path) -> None:
    with pytest.raises(FitError, match=r"'kept': .* saved with the weights"):
        trainer(tmp_path, privacy(), max_epochs=3).fit(with_update(update, kind), Data())


def test_a_buffer_that_is_not_saved_may_know_anything(tmp_path: Path) -> None:
    class Forgotten(Stateful):
        def __init__(self) -> None:
            Module.__init__(self)
            self.register_buffer("kept", torch.zeros(()), persistent=False)

        update = running_mean

    callback = privacy()
    trainer(tmp_path, callback).fit(Forgotten(), Data())
    assert callback.steps == 2 * STEPS


def test_a_counter_that_misses_a_step_counts_something_else(tmp_path: Path) -> None:
    def sometimes(self: Any, *others: Any) -> None:
        self.kept += 0 if self.trainer.global_step in (3, 6) else 1
        others[-1].zero_grad()

    def by_the_loss(self: Any, *others: Any) -> None:
        self.kept += int(self.noted > 2.2)

    def note(self: Any, tokens: Tensor, loss: Tensor) -> None:
        self.noted = float(loss)

    made = with_update(NOTHING, torch.int64, optimizer_zero_grad=sometimes)
    with pytest.raises(FitError, match=r"'kept': .* could not be shown"):
        trainer(tmp_path, privacy(), max_epochs=3).fit(made, Data())
    with pytest.raises(FitError, match=r"'kept': .* saved with the weights"):
        trainer(tmp_path, privacy(), max_epochs=3).fit(
            with_update(note, torch.int64, on_after_backward=by_the_loss), Data()
        )


# ---- what does not ----------------------------------------------------------------------------------------------


def count_steps(self: Any, *others: Any) -> None:
    self.kept += 1


def cool_down(self: Any, *others: Any) -> None:
    self.kept.mul_(0.99)


def by_the_clock(self: Any, *others: Any) -> None:
    self.kept.fill_(1 / (1 + self.trainer.global_step))


def by_the_epoch(self: Any, *others: Any) -> None:
    self.kept.fill_(1 / (1 + self.trainer.current_epoch))


def average_of_weights(self: Any, *others: Any) -> None:
    self.kept.lerp_(self.net.out.weight.detach().mean(), 0.1)


def first_time(self: Any, *others: Any) -> None:
    self.kept.fill_(True)


def at_random(self: Any, *others: Any) -> None:
    self.kept.normal_()


NOTHING: Any = lambda self, *others: None  # noqa: E731


@pytest.mark.parametrize(
    ("update", "kind", "hooks"),
    [
        (count_steps, torch.int64, []),
        (count_steps, torch.float32, []),
        (cool_down, torch.float32, []),
        (by_the_clock, torch.float32, []),
        (by_the_epoch, torch.float32, []),
        (average_of_weights, torch.float32, []),
        (first_time, torch.bool, []),
        (at_random, torch.float32, []),
        *(
            (change, kind, [hook])
            for change, kind in ((count_steps, torch.int64), (cool_down, torch.float32), (by_the_epoch, torch.float32))
            for hook in ("on_train_batch_start", "on_train_batch_end", "on_train_epoch_start", "on_train_epoch_end")
        ),
        (count_steps, torch.int64, ["on_before_optimizer_step"]),
        (count_steps, torch.int64, ["on_validation_end"]),
    ],
)
def test_what_moves_by_itself_goes_on(update: Any, kind: Any, hooks: list[str], tmp_path: Path) -> None:
    """In the training step, or in a hook."""
    found = []
    for settings in ({}, {"verify_steps": 0}):
        torch.manual_seed(0)
        made = dict.fromkeys(hooks, update)
        module, callback = with_update(NOTHING if hooks else update, kind, 1, **made), privacy(**settings)
        trainer(tmp_path, callback, max_epochs=4).fit(module, Data())
        assert callback.steps == 4 * STEPS
        assert len(module.seen) == 4 * STEPS  # what the module counts itself knows nothing of repetitions
        found.append((weights(module), torch.get_rng_state()))
    assert same(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.filterwarnings("ignore:Found 1 module.s. in eval mode")
def test_a_frozen_normalization_and_masks_are_no_alarm(tmp_path: Path) -> None:
    class Normalized(Module):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(VOCAB).bool())
            self.net.extra = nn.BatchNorm1d(WIDTH).requires_grad_(False)

        def on_train_epoch_start(self) -> None:
            self.net.extra.eval()

    module, callback = Normalized(), privacy()
    module.net.extra.eval()
    trainer(tmp_path, callback).fit(module, Data())
    assert callback.steps == 2 * STEPS


def test_what_cannot_be_shown_is_refused_unless_it_is_vouched_for(tmp_path: Path) -> None:
    hook = {"on_validation_end": cool_down}
    with pytest.raises(
        FitError, match=r"'kept': is saved with the weights.* could not be shown .*post_processing=\[\"name"
    ):
        trainer(tmp_path, privacy()).fit(with_update(NOTHING, start=1, **hook), Data())
    callback = privacy(post_processing=["kept"])
    trainer(tmp_path, callback).fit(with_update(NOTHING, start=1, **hook), Data())
    assert callback.steps == 2 * STEPS
    assert callback.state_dict()["post_processing"] == ["kept"]


def test_repetitions_log_nothing(tmp_path: Path) -> None:
    class Logging(Stateful):
        update = count_steps

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.logger.log_metrics({"by hand": 1.0}, step=self.global_step)
            self.log("size", float(len(batch[0])), on_step=True, on_epoch=False)
            return super().training_step(batch, batch_idx)

    rows = []
    for name, settings in (("a", {}), ("b", {"verify_steps": 0})):
        run = trainer(tmp_path, privacy(**settings), logger=CSVLogger(tmp_path, name), max_epochs=3)
        run.fit(Logging(), Data())
        rows.append((Path(run.logger.log_dir) / "metrics.csv").read_text())
    assert rows[0] == rows[1]


# ---- parts ------------------------------------------------------------------------------------------------------


def test_part_of() -> None:
    tokens = torch.arange(6).view(3, 2)
    found = part_of([tokens, {"length": torch.tensor([1, 2, 3]), "name": ("a", "b", "c"), "scale": torch.tensor(2.0)}])
    assert found[0].tolist() == [[0, 1]]
    assert found[1]["length"].tolist() == [1]
    assert found[1]["name"] == ("a",)
    assert float(found[1]["scale"]) == 2.0
    assert part_of(tokens[:1]).shape == (2, 2)
    assert part_of("a text") == "a text"


def test_without_a_second_outcome_nothing_is_shown() -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("x", torch.zeros(()))

    module = One()
    watching = SavedState(module)
    module.x += 2.0  # type: ignore[operator]
    with pytest.raises(FitError, match="could not be shown"):
        watching.look(lambda names: ({"x": 0}, [{"x": 1}]))
