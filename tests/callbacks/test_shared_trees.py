"""One tree per fit: what is expensive before anything is measured is done once for all callbacks of a Trainer."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from lightning_exposure import AuditCallback, CanarySet, ExposureCallback, ExtractionCallback
from lightning_exposure.callbacks import AuditWarning
from lightning_exposure.measuring import SharedTrees
from lightning_exposure.tokenization.spelling import Spelling
from tests.callbacks.setups import CHARS, KEY, PIN, Model, loader, trainer

COINS = CanarySet.draw([PIN, KEY], repetitions=[1] * 6, seed=0, holdout=0.5)

pytestmark = pytest.mark.filterwarnings(f"ignore::{AuditWarning.__module__}.AuditWarning")


class CountingTokenizer:
    """Counts how often it spells each text."""

    vocab_size = CHARS.vocab_size

    def __init__(self) -> None:
        self.spelled: Counter[str] = Counter()

    def encode(self, text: str) -> list[int]:
        self.spelled[text] += 1
        return CHARS.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return CHARS.decode(tokens)


class Counting(Model):
    """Counts how often it is asked; with an LSTM of its own, or with a GPT-2 of Hugging Face."""

    def __init__(self, network: nn.Module | None = None) -> None:
        super().__init__(width=8)
        self.network = network
        self.calls = 0

    def forward(self, tokens: Tensor, state: Any = None) -> Any:
        self.calls += 1
        return super().forward(tokens, state) if self.network is None else (self.network(tokens).logits, None)


class CountingGPT2(GPT2LMHeadModel):
    """Counts how often it is asked."""

    calls = 0

    def forward(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        return super().forward(*arguments, **options)


class Look(L.Callback):
    """Stands first, and looks when all trees are built and nothing was measured."""

    def __init__(self, counting: Any) -> None:
        self.counting, self.calls = counting, 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.calls = self.counting.calls


def gpt2() -> CountingGPT2:
    torch.manual_seed(0)
    return CountingGPT2(
        GPT2Config(
            vocab_size=CHARS.vocab_size, n_positions=32, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
        )
    )


def callbacks(tokenizer: Any = CHARS, **options: Any) -> list[Any]:
    return [
        ExtractionCallback(COINS, tokenizer, budget=100, verbose=False, **options),
        ExposureCallback(COINS, tokenizer, samples=32, budget=100, references=0, **options),
        AuditCallback(COINS, tokenizer, **options),
    ]


def calls_before_training(folder: Path, parts: Sequence[Any], *, huggingface: bool) -> int:
    network = gpt2() if huggingface else None
    model = Counting(network)
    look = Look(model if network is None else network)
    trainer(folder, look, *parts, max_epochs=1, limit_train_batches=1).fit(model, loader(COINS))
    return look.calls


def test_every_format_is_spelled_once_in_a_fit(tmp_path: Path) -> None:
    tokenizer, alone = CountingTokenizer(), CountingTokenizer()
    for format in COINS.by_format():
        Spelling(format, alone)
    run = trainer(tmp_path, *callbacks(tokenizer), max_epochs=1, limit_train_batches=1)
    run.fit(Model(width=8), loader(COINS))
    texts = [text for format in COINS.by_format() for text in format.covering() if text not in COINS.texts]
    assert texts
    assert {text: tokenizer.spelled[text] for text in texts} == {text: alone.spelled[text] for text in texts}


@pytest.mark.parametrize("huggingface", [False, True])
def test_the_model_is_tried_once_in_a_fit(tmp_path: Path, huggingface: bool) -> None:
    """The first of the three rehearses its attack, too: the other two add nothing at all."""
    attack, *others = callbacks()
    by_itself = calls_before_training(tmp_path, [callbacks()[0]], huggingface=huggingface)
    assert calls_before_training(tmp_path, [attack, *others], huggingface=huggingface) == by_itself > 0


def test_the_same_part_of_the_module_is_shared_whoever_names_it(tmp_path: Path) -> None:
    parts = [
        ExposureCallback(COINS, CHARS, samples=32, name=name, model=model)
        for name, model in (("x", lambda module: module.network), ("y", lambda module: getattr(module, "network")))  # noqa: B009
    ]
    trainer(tmp_path, *parts, max_epochs=1, limit_train_batches=1).fit(Counting(gpt2()), loader(COINS))
    one, other = (part._trees.trees for part in parts)
    assert all(one[format] is other[format] for format in COINS.by_format())


def test_other_models_tokenizers_and_contexts_have_trees_of_their_own(tmp_path: Path) -> None:
    model = Counting(gpt2())
    parts = [
        ExposureCallback(COINS, tokenizer, samples=32, budget=100, references=0, name=name, **options)
        for name, tokenizer, options in (
            ("a", CHARS, {"model": lambda module: module.network}),
            ("b", CountingTokenizer(), {"model": lambda module: module.network}),
            ("c", CHARS, {"model": lambda module: module.network, "context": 16}),
            ("d", CHARS, {}),
        )
    ]
    trainer(tmp_path, *parts, max_epochs=1, limit_train_batches=1).fit(model, loader(COINS))
    assert len({id(part._trees.trees[PIN]) for part in parts}) == 4


def test_a_batch_size_is_ones_own_and_everything_else_is_shared(tmp_path: Path) -> None:
    small, large = (ExposureCallback(COINS, CHARS, batch_size=size, name=f"{size}") for size in (16, 4096))
    trainer(tmp_path, small, large, max_epochs=1, limit_train_batches=1).fit(Model(width=8), loader(COINS))
    trees = [callback._trees.trees[PIN] for callback in (small, large)]
    assert [tree.batch_size for tree in trees] == [16, 4096]
    assert trees[0].spelling is trees[1].spelling
    assert trees[0].model is trees[1].model


def test_a_second_fit_looks_again(tmp_path: Path) -> None:
    """Another model, and perhaps a tokenizer that has learned new tokens since."""
    callback, run = ExposureCallback(COINS, CHARS, samples=32, references=0), trainer(tmp_path, max_epochs=1)
    run.callbacks.append(callback)  # type: ignore[attr-defined]
    found = []
    for _ in range(2):
        model = Model(width=8)
        run.fit_loop.epoch_progress.reset()
        run.fit(model, loader(COINS))
        found.append(callback._trees.trees[PIN])
        assert found[-1].model.module is model
    assert found[0].spelling is not found[1].spelling


def test_nothing_is_kept_alive() -> None:
    class Run:
        pass

    class Member:
        pass

    run, member, other = Run(), Member(), Member()
    shared = SharedTrees.join(run, member)
    assert SharedTrees.join(run, other) is shared
    assert SharedTrees.join(run, member) is not shared
    watched = weakref.ref(shared)
    del shared
    gc.collect()
    assert watched() is None
