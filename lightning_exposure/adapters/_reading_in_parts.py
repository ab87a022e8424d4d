"""Whether a model that is read in parts gives what it gives when it reads everything at once: one trial for all models.

Whoever wants to go on from a state (of a recurrent network, of keys and values, of a decoder) has to show first that
the state carries what was read, in one row, in several rows together, and in rows of different lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from lightning_exposure.adapters._differences import SameLogits, comparable, difference, eps_of
from lightning_exposure.adapters.protocol import StepModel, device_of
from lightning_exposure.adapters.states import ModelState

_CARRIED = 0.25
"""An error of a state must be so small beside the difference that it makes to have read what came before."""

AtOnce = Callable[[Tensor, int], Tensor]
"""The logits `(batch, tokens, vocabulary)` of rows `(batch, time)` in one pass: those of so many of the last tokens.

More will do, and where a model gives no others, those of the last token alone.
"""


class ReadsOn(StepModel, Protocol):
    """What is tried: a `StepModel`, and a look at what its states hold."""

    def contents(self, state: ModelState, /) -> Iterator[Tensor]:
        """All that the state of one row carries, tensor by tensor."""
        ...


def difference_in_parts(
    reader: ReadsOn,
    at_once: AtOnce,
    prompt: Sequence[int],
    paths: Sequence[Sequence[int]],
    *,
    last: int | None = None,
    lengths: bool = True,
) -> str | None:
    """What is different when tokens are read one by one instead of at once; None if nothing is.

    What the states carry is compared too: logits of an untrained head may be the same whatever was read before.

    Args:
        reader: What reads in parts.
        at_once: What reads in one pass.
        prompt: Tokens that are read first.
        paths: Two ways to go on, of equal length.
        last: After how many of the last tokens logits are compared; None: after all of those that are read one by one.
        lengths: Whether rows of different lengths are to be read together, too. States that a module of somebody's own
            makes may grow, and then there is nobody who knows how to fill up the shorter ones.
    """
    trial = _Trial(reader, at_once, list(prompt), [list(path) for path in paths[:2]])
    return trial.judge(len(paths[0]) + 1 if last is None else last, lengths)


class _Trial:
    """One trial under way."""

    def __init__(self, reader: ReadsOn, at_once: AtOnce, prompt: list[int], paths: list[list[int]]) -> None:
        self._reader = reader
        self._at_once = at_once
        self._prompt = prompt
        self._paths = paths
        self._device = device_of(reader.module)
        self._what = f"{len(prompt)} + {len(paths[0])} tokens read in parts"

    def judge(self, count: int, lengths: bool) -> str | None:
        """The first difference that shows."""
        path = self._paths[0]
        both = self._tensor([[*self._prompt, *path] for path in self._paths])
        alone = self._at_once(both[:1], count)[0, -count:]
        together = self._at_once(both, count)[:, -count:]
        noise = float(difference(comparable(alone), comparable(together[0])).max())
        self._same = SameLogits(eps_of(self._reader.module, alone), noise)
        logits, root = self._reader.start(self._prompt)
        states, found = [root], [logits[0]]
        for token in path:
            logits, state = self._reader.step(states[-1], self._tensor([token]))
            states = [*states[-1:], state]
            found.append(logits[0])
        if not self._same(torch.stack(found[-len(alone) :]), alone):
            return f"{self._what} give other logits than read at once"
        reason = self._carried(root, states[-1]) or self._rows_together(root, together[:, -1])
        return self._lengths_together(root, states, found) if reason is None and lengths else reason

    def _carried(self, root: ModelState, in_parts: ModelState) -> str | None:
        """Whether the state after steps is that after one pass, and not that of having read nothing before."""
        path, contents = self._paths[0], self._reader.contents
        mine = list(contents(in_parts))
        _, whole = self._reader.start([*self._prompt, *path])
        theirs = list(contents(whole))
        if len(mine) != len(theirs) or not all(map(self._same.tensors, mine, theirs)):
            return f"{self._what} are carried on differently than read at once"
        if not path or [tensor.shape for tensor in contents(root)] != [tensor.shape for tensor in mine]:
            return None  # a state that grows shows by its size that something was added to it
        # A state of one size may hold nothing but the last token. An error must be small beside the difference that it
        # makes what was read before: in half precision that may be little.
        _, forgetful = self._reader.start(path[-1:])
        error, carried = _distance(mine, theirs), _distance(mine, list(contents(forgetful)))
        if error < carried and error <= _CARRIED * carried:
            return None
        return f"{self._what} leave a state that does not carry what was read"

    def _rows_together(self, root: ModelState, expected: Tensor) -> str | None:
        """Whether rows that are picked, mixed and read together are what each of them is in one pass."""
        reader, tokens = self._reader, self._tensor(self._paths)
        state, order = reader.select(root, self._tensor([0, 0])), self._tensor([0, 1])
        logits = None
        for step in range(tokens.shape[1]):
            if step == 1:  # whoever keeps the states of rows in some order shows here that it is kept
                order = self._tensor([1, 0])
                state = reader.concatenate([reader.select(state, order[:1]), reader.select(state, order[1:])])
            logits, state = reader.step(state, tokens[order, step])
        if logits is None or self._same(logits, expected[order]):
            return None
        return f"{self._what} in several rows give other logits than read at once"

    def _lengths_together(self, root: ModelState, states: list[ModelState], found: list[Tensor]) -> str | None:
        """Whether rows of different lengths are read together as each of them is alone."""
        path = self._paths[0]
        if len(path) < 2:
            return None
        state = self._reader.concatenate([root, states[-2]])
        logits, _ = self._reader.step(state, self._tensor([path[0], path[-1]]))
        if self._same(logits, torch.stack([found[1], found[-1]])):
            return None
        return "rows of different lengths give other logits together than alone"

    def _tensor(self, numbers: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._device)


def _distance(some: list[Tensor], others: list[Tensor]) -> float:
    """The largest difference between tensors of the same shapes."""
    both = zip(some, others, strict=True)
    return max((float((one.double() - other.double()).abs().max()) for one, other in both if one.numel()), default=0.0)
