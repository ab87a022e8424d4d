"""What we use of the undocumented parts of the Trainer of transformers: each test says by its name what has changed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from lightning_exposure.integrations._trainer import calling_handler, go_first
from tests.integrations.setups import trainer


class Called(TrainerCallback):
    """Notes the handler that calls it, and its place among the others."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        handler = calling_handler(sys._getframe())
        self.seen.append(handler)
        go_first(handler, self)
        state.stateful_callbacks["ours"] = {"plain": [1, 2.5, "text"]}


class Counting(TrainerCallback):
    def __init__(self) -> None:
        self.count = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.count += 1


def test_a_callback_finds_the_handler_that_calls_it(tmp_path: Path) -> None:
    callback = Called()
    one = trainer(tmp_path, callback, max_steps=1)
    one.train()
    assert callback.seen == [one.callback_handler]
    assert calling_handler(sys._getframe()) is None


def test_a_callback_that_goes_first_leaves_none_out_and_calls_none_twice(tmp_path: Path) -> None:
    before, called, behind = Counting(), Called(), Counting()
    one = trainer(tmp_path, before, called, max_steps=1)
    one.add_callback(behind)
    one.train()
    assert (before.count, len(called.seen), behind.count) == (1, 1, 1)
    assert one.callback_handler.callbacks[0] is called


def test_what_stands_in_stateful_callbacks_is_saved_and_read_again(tmp_path: Path) -> None:
    one = trainer(tmp_path, Called(), max_steps=1, save_strategy="steps", save_steps=1)
    one.train()
    again = trainer(tmp_path, max_steps=1)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert again.state.stateful_callbacks["ours"] == {"plain": [1, 2.5, "text"]}
