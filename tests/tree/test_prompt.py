"""The prompt is read once in a measurement, and not kept for longer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_exposure import SecretFormat, SecretTree, extract, measure_exposure
from lightning_exposure.adapters import HuggingFaceAdapter, RecurrentAdapter, Seq2SeqAdapter, StatelessAdapter
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.walks import (
    DistinctSampler,
    beam,
    best_first,
    enumerate_leaves,
    measure_rounding,
    model_walks,
    score,
    uniform_walks,
)
from lightning_exposure.walks.score import follow
from tests.adapters.hf_models import bloom, gpt2
from tests.cases import CHARACTERS
from tests.toys import Recurrent, Stateless, sharpened
from tests.translators import LETTERS, PIN, SOURCE, make_lstm

CHARS = CharTokenizer.from_text(CHARACTERS)
FORMAT = SecretFormat("my pin is ##-#")
SECRETS = FORMAT.sample(5, seed=1)


class Counting:
    """Any step model, and how often it was given which prompt."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.prompts: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def module(self) -> nn.Module:
        module: nn.Module = self._model.module
        return module

    def start(self, tokens: Sequence[int], /) -> tuple[Tensor, Any]:
        self.prompts.append(list(tokens))
        return self._model.start(tokens)  # type: ignore[no-any-return]

    def step(self, state: Any, tokens: Tensor, /) -> tuple[Tensor, Any]:
        return self._model.step(state, tokens)  # type: ignore[no-any-return]

    def select(self, state: Any, rows: Tensor, /) -> Any:
        return self._model.select(state, rows)

    def concatenate(self, states: Sequence[Any], /) -> Any:
        return self._model.concatenate(states)

    def bytes_of(self, state: Any, /) -> int:
        return int(self._model.bytes_of(state))


def recurrent() -> Any:
    return RecurrentAdapter(sharpened(Recurrent(CHARS.vocab_size), seed=1))


ADAPTERS: dict[str, tuple[Callable[[], Any], SecretFormat, Any]] = {
    "recurrent": (recurrent, FORMAT, CHARS),
    "stateless": (lambda: StatelessAdapter(sharpened(Stateless(CHARS.vocab_size), seed=1)), FORMAT, CHARS),
    "attention": (lambda: HuggingFaceAdapter(gpt2()), FORMAT, CHARS),
    "cache": (lambda: HuggingFaceAdapter(bloom()), FORMAT, CHARS),
    "translation": (lambda: Seq2SeqAdapter(sharpened(make_lstm(), seed=1), SOURCE), PIN, LETTERS),
}


def counted(name: str = "recurrent") -> tuple[SecretTree, Counting]:
    make, format, tokenizer = ADAPTERS[name]
    model = Counting(make())
    tree = SecretTree(model, format, tokenizer)
    model.prompts.clear()  # those of the trial
    return tree, model


def times_read(tree: SecretTree, model: Counting) -> int:
    return model.prompts.count(list(tree.spelling.root))


@pytest.mark.parametrize("method", ["auto", "exact", "importance", "sampling"])
@pytest.mark.parametrize("name", ADAPTERS)
def test_a_measurement_reads_the_prompt_once(name: str, method: str) -> None:
    tree, model = counted(name)
    secrets = tree.format.sample(3, seed=1)
    measure_exposure(tree, secrets, method, samples=64, precision=0.25 if method == "auto" else None)
    assert times_read(tree, model) == 1
    # Beside it, one secret is read in a single pass to see how costs are rounded, and nothing else.
    assert len(model.prompts) == 2


@pytest.mark.parametrize("algorithm", ["shortest_path", "beam", "brute_force", "sampling"])
def test_an_attack_reads_the_prompt_once(algorithm: str) -> None:
    tree, model = counted()
    extract(tree, algorithm=algorithm)
    assert model.prompts == [list(tree.spelling.root)]


WALKS: dict[str, Callable[[SecretTree], Any]] = {
    "score": lambda tree: score(tree, SECRETS),
    "uniform": lambda tree: uniform_walks(tree, 20, seed=0),
    "model": lambda tree: model_walks(tree, 20, seed=0),
    "distinct": lambda tree: DistinctSampler(tree, 20, seed=0),
    "enumerate": lambda tree: list(enumerate_leaves(tree)),
    "follow": lambda tree: list(follow(tree, tree.paths(SECRETS))),
    "best first": best_first,
    "beam": beam,
    "rounding": lambda tree: measure_rounding(tree, tree.paths(SECRETS)),
}


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_reads_the_prompt_once(name: str) -> None:
    tree, model = counted()
    WALKS[name](tree)
    assert times_read(tree, model) == 1


def test_states_that_do_not_fit_are_computed_again_without_reading_the_prompt_again() -> None:
    tree, model = counted()
    with_room = best_first(tree, 3)
    model.prompts.clear()
    without = best_first(tree, 3, memory=20_000)
    assert times_read(tree, model) == 1
    assert np.array_equal(with_room.costs, without.costs)


@pytest.mark.parametrize("name", ADAPTERS)
def test_nothing_is_kept_between_measurements(name: str) -> None:
    tree, model = counted(name)
    secrets = tree.format.sample(3, seed=1)
    (before, *_), again = measure_exposure(tree, secrets), measure_exposure(tree, secrets)
    assert again[0] == before
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.mul_(0.5)
    make, format, tokenizer = ADAPTERS[name]
    afresh = make()
    afresh.module.load_state_dict(model.module.state_dict())
    assert measure_exposure(tree, secrets) == measure_exposure(SecretTree(afresh, format, tokenizer), secrets)
    assert measure_exposure(tree, secrets)[0].log_perplexity != before.log_perplexity


def test_memory_is_freed_after_a_measurement_and_after_an_error() -> None:
    tree, model = counted()
    states: list[weakref.ref[Tensor]] = []
    start = model.start

    def noted(tokens: Sequence[int], /) -> tuple[Tensor, Any]:
        logits, state = start(tokens)
        states.append(weakref.ref(state[0]))
        return logits, state

    model.start = noted  # type: ignore[method-assign]
    measure_exposure(tree, SECRETS)

    def interrupt(expansions: int, open_nodes: int, best: float) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        measure_exposure(tree, SECRETS, "exact", progress=interrupt)
    gc.collect()
    assert len(states) == 4
    assert not any(state() is not None for state in states)


def test_a_walk_that_waits_keeps_nothing_from_the_next_one() -> None:
    tree, model = counted()
    waiting = enumerate_leaves(tree)
    next(waiting)
    score(tree, SECRETS)
    assert times_read(tree, model) == 2
    waiting.close()


def test_a_part_of_the_tree_has_a_prompt_of_its_own() -> None:
    tree, model = counted()
    with tree.prompt.kept():
        tree.root()
        part = tree.starting_with("my pin is 4")
        part.root()
    assert model.prompts == [list(tree.spelling.root), list(part.spelling.root)]


def test_a_model_that_goes_on_to_another_way_of_reading_reads_the_prompt_again() -> None:
    tree, model = counted()
    model.way = "fast"  # type: ignore[attr-defined]
    with tree.prompt.kept():
        tree.root()
        tree.root()
        model.way = "slow"  # type: ignore[attr-defined]
        tree.root()
        tree.root()
    assert times_read(tree, model) == 2
