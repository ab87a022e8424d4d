"""The prompt of a tree: read when it is asked for, and once only for as long as a measurement lasts.

A measurement walks a tree several times: to score secrets, to see how costs are rounded, to sample, to count. All of
these begin with the same prompt, which may be long. What was read is not kept beyond the measurement: the next
training step changes the weights, and the state takes memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

from torch import Tensor

from lightning_exposure.adapters.protocol import StepModel, evaluating
from lightning_exposure.adapters.states import ModelState

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class _Kept(NamedTuple):
    """What a model says after a prompt, and how it was read: an adapter may go on to another way."""

    logits: Tensor
    state: ModelState
    way: object


class Prompt:
    """The tokens before the first blank, and what a model makes of them.

    Args:
        model: What reads.
        tokens: The prompt.

    Example:
        >>> from torch import nn
        >>> from lightning_exposure.adapters import StatelessAdapter
        >>> prompt = Prompt(StatelessAdapter(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))), [1, 2])
        >>> with prompt.kept():
        ...     prompt.read()[0] is prompt.read()[0]
        True
        >>> prompt.read()[0] is prompt.read()[0]
        False
    """

    def __init__(self, model: StepModel, tokens: Sequence[int]) -> None:
        self._model = model
        self._tokens = tokens
        self._users = 0
        self._kept: _Kept | None = None

    def read(self) -> tuple[Tensor, ModelState]:
        """The logits `(1, vocabulary)` after the prompt, and the state of that one row."""
        way = getattr(self._model, "way", None)
        if self._kept is not None and self._kept.way == way:
            return self._kept.logits, self._kept.state
        with evaluating(self._model.module):
            logits, state = self._model.start(self._tokens)
        if self._users:
            self._kept = _Kept(logits, state, getattr(self._model, "way", None))
        return logits, state

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep what was read until the outermost of these contexts ends."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._kept = None


def reads_prompt_once(walk: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a function whose first argument is a tree: while it runs, the tree's prompt is read once."""

    @wraps(walk)
    def once(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        tree = args[0] if args else options.get("tree")
        prompt = getattr(tree, "prompt", None)
        if not isinstance(prompt, Prompt):  # what is no tree, the function itself refuses
            return walk(*args, **options)
        with prompt.kept():
            return walk(*args, **options)

    return once
