"""`Others`: the optimizers beside the private one. What they step along must not know the training data.

A generator that learns from what a private discriminator says of generated records takes nothing from the data but
through the discriminator, whose weights are covered by epsilon. That this is so is shown, not believed: its part of a
training step is run again with other records in the batch, and with fewer of them. Its gradients must be the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_exposure.callbacks._progress import say
from lightning_exposure.callbacks.private.manual import _messages as messages
from lightning_exposure.callbacks.private.manual.rehearsing import Enough, Rehearsal
from lightning_exposure.callbacks.private.watching.rerunning import hooks_before_step, silenced, without_loggers
from lightning_exposure.errors import ExposureError, FitError
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.steps.proof.reruns.randomness import RowRandomness
from lightning_exposure.privacy.steps.proof.reruns.rows import BatchRows
from lightning_exposure.privacy.steps.proof.reruns.undoing import LightState, RandomState, unnoticed
from lightning_exposure.privacy.steps.watching import BEFORE, STOPPED, Watch

_LATER, _SOON = 1 / 64, 4
"""How often, after the first batches, one is looked at as closely as those: it takes the time of eight steps. The fewer
batches there were, the likelier it is: the n-th with a probability of four over n, if that is more. So a term that
begins after some epochs is met before it has had much to say."""
_DELAY = 4
"""What is kept of a batch, in a queue, may show so many batches later."""
_CLOSE = {True: 1e-2, False: 1e-5}
"""By which part of its norm a gradient may be off, in half precision and otherwise: the order of a sum."""

Stepped = list[tuple[int, list[Tensor]]]
"""The gradients along which optimizers would step, one after the other: the place of each, and its gradients."""


class Others:
    """Watches over the optimizers that are not private, and proves that they do not see the data.

    Args:
        trainer: That trains.
        module: What is trained.
        private: The place of the private optimizer among all, and the name of the part that it trains.
        rehearsal: Runs training steps of the module.
        clipping: Of that part.
        watch: Over the weights.
        verify: How many batches are looked at closely at first.
        luck: Chooses later ones; private.
    """

    def __init__(
        self,
        trainer: Any,
        module: Any,
        private: tuple[int, str],
        rehearsal: Rehearsal,
        clipping: Clipping,
        watch: Watch,
        *,
        verify: int,
        luck: np.random.Generator,
    ) -> None:
        self._trainer, self._module, self._rehearsal = trainer, module, rehearsal
        self._clipping, self._watch = clipping, watch
        (self._place, self._name), self._left, self._luck = private, verify, luck
        self._close = _CLOSE["16" in str(trainer.precision)]
        self._optimizers = {place: each for place, each in enumerate(trainer.optimizers) if place != self._place}
        self._hooks: list[Any] = []
        for place, optimizer in self._optimizers.items():
            self._hooks += [
                optimizer.register_step_pre_hook(self._before(place)),
                optimizer.register_step_post_hook(self._after(place)),
            ]
        self._batch: Any = None
        self._index, self._examples = 0, 0
        self._closely = self._looked = self._inside = False
        self._batches = 0
        self._start: _Start | None = None
        self._wanting: list[tuple[nn.Parameter, bool]] = []
        self._expected: dict[int, list[list[Tensor]]] = {}
        self._seen: set[int] = set()

    def begin(self, batch: Any, index: int, examples: int) -> None:
        """A batch comes.

        Args:
            batch: What the training step is given.
            index: Its number.
            examples: How many examples it has.
        """
        self._batch, self._index, self._examples = batch, index, examples
        self._wanting = [(value, value.requires_grad) for value in self._module.parameters()]
        self._expected, self._seen = {}, set()
        self._batches += 1
        later = max(_LATER, _SOON / self._batches)
        self._closely = examples > 1 and (self._left > 0 or self._luck.random() < later)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """A training step is made inside; nowhere else may the others step.

        Raises:
            FitError: They would step elsewhere, if other records were in its batch.
        """
        self._train()
        self._inside = True
        try:
            yield
        finally:
            self._inside, self._start = False, None

    def _train(self) -> None:
        """Would the others step elsewhere, if other records were in the batch?"""
        if not self._closely or not self._optimizers:
            return
        self._start = _Start(self._module)
        self._looked = True
        self._left -= bool(self._left)
        try:
            self._swap(BatchRows(self._batch, self._examples))
        except ExposureError:
            raise
        except Exception as problem:
            raise FitError(
                f"A training step could not be run with other records in its batch, or with fewer "
                f"({type(problem).__name__}: {problem}): whether the optimizers beside that of {self._name!r} see the "
                f"data cannot be shown. {STOPPED} Let it work with any number of records."
            ) from problem

    def finish(self) -> None:
        """After the last batch: say so if there was never one to look at."""
        if self._optimizers and not self._looked:
            say(
                self._trainer,
                f"Whether the optimizers beside that of {self._name!r} see the data could not be seen: no batch had "
                "two examples that could be exchanged. Epsilon holds only if they do not.",
            )

    def close(self) -> None:
        """Leave the optimizers as they were."""
        for hook in self._hooks:
            hook.remove()

    # ---- before its steps -------------------------------------------------------------------------------------------

    def _swap(self, rows: BatchRows) -> None:
        """The same batch with other records in it, and with fewer of them."""
        if not rows.found:
            raise FitError(
                f"No examples were found in the batch ({type(self._batch).__name__}), because nothing in it is as long "
                f"as there are examples ({self._examples}): whether the optimizers beside that of {self._name!r} see "
                f"the data cannot be shown. {STOPPED} Give the examples in the first dimension of tensors."
            )
        count = self._examples
        half = [place % (count // 2) for place in range(count)]
        # Each half in the place of the other: what only looks at the nearest record may not miss one of them.
        back = [count - 1 - place for place in half]
        same, swapped, turned, fewer = (rows.take(each) for each in (range(count), half, back, half[: count // 2]))
        found = [self._steps(batch) for batch in (same, swapped, turned, fewer)]
        for other, why in zip(found[1:], (messages.SWAPPED, messages.SWAPPED, messages.FEWER), strict=True):
            if self._differing(found[0], other):
                self._refuse_difference(why, found[0], other, same)
        if hidden := self._hidden(found[0], found[1], same, swapped):
            self._refuse(messages.SWAPPED, *hidden)
        # What they remember of a batch must not show in the next, nor in one soon after it.
        for delay in (1, _DELAY):
            one, other = (self._steps(*[first] * delay, same) for first in (same, swapped))
            if self._differing(one, other):
                self._refuse(messages.CARRIED, *self._differing(one, other))
            if not self._keeps(same, swapped):
                break

    def _hidden(self, one: Stepped, other: Stepped, same: Any, swapped: Any) -> list[int]:
        """The places of optimizers in which weights see the data whose gradients are small beside those of others.

        Some optimizers step along small gradients as far as along large ones. Rounding is told from them by running
        both batches again: it is then another, or there is none at all, because the data have no part in it.
        """
        found = [
            place
            for (place, gradients), (_, others) in zip(one, other, strict=True)
            if not all(self._same([a], [b]) for a, b in zip(gradients, others, strict=True))
        ]
        if found and all(map(_equal, (one, other), (self._steps(same), self._steps(swapped)))):
            return list(dict.fromkeys(found))
        return []

    def _refuse_difference(self, why: str, one: Stepped, other: Stepped, same: Any) -> None:
        never = self._differing(one, self._steps(same))
        self._refuse(messages.NEVER_THE_SAME if never else why, *(never or self._differing(one, other)))

    def _keeps(self, *batches: Any) -> bool:
        """Whether the module is another after one batch than after another."""
        states = []
        for batch in batches:
            with self._traceless() as again, RowRandomness(self._examples):
                again()
                self._go_through(batch, lambda place: None)
                states.append(LightState(self._module).fingerprint())
        return states[0] != states[1]

    def _steps(self, *batches: Any) -> Stepped:
        """Along what the others would step in the last of some batches, one after the other, from the same state on."""
        found: Stepped = []
        with self._traceless() as again:
            for batch in batches:
                found.clear()
                again()
                with RowRandomness(self._examples):
                    self._go_through(batch, lambda place: self._note(found, place))
        return list(found)

    def _go_through(self, batch: Any, stepped: Callable[[int], None]) -> None:
        """A training step, and before it the hooks of the module that see its batch."""
        hooks_before_step(self._module, batch, self._index)
        self._rehearsal.run(batch, self._index, stepped=stepped)

    def _note(self, found: Stepped, place: int) -> None:
        if place != self._place:
            found.append((place, _gradients(self._optimizers[place])))

    def _differing(self, one: Stepped, other: Stepped) -> list[int]:
        """The places of the optimizers that would step along other gradients, more often, or in another order."""
        found = []
        for place in self._optimizers:
            mine, theirs = ([each for at, each in steps if at == place] for steps in (one, other))
            if len(mine) != len(theirs) or not all(map(self._same, mine, theirs)):
                found.append(place)
        if found or [place for place, _ in one] == [place for place, _ in other]:
            return found
        return list(self._optimizers)

    def _same(self, one: list[Tensor], other: list[Tensor]) -> bool:
        """Whether gradients are the same but for rounding."""
        if len(one) != len(other):
            return False
        apart = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(one, other, strict=True))
        length = sum(float(a.double().square().sum()) for a in one)
        return bool(apart <= self._close**2 * length)  # and not if they are no numbers

    # ---- in the step ------------------------------------------------------------------------------------------------

    def _before(self, place: int) -> Callable[..., None]:
        def hook(optimizer: Optimizer, arguments: Any, options: Any) -> None:
            self._rehearsal.refuse_steps()
            if self._watch.allows:
                return  # in a hook that the user vouches for
            if not self._inside:
                self._refuse(messages.OUTSIDE, place)
            self._watch.check_groups()
            self._watch.check(BEFORE, quick=True)
            if self._start is not None and place not in self._seen:
                self._expected[place] = [self._with_other_records(place, self._start)]
                if not self._same(self._expected[place][0], _gradients(optimizer)):
                    # It may have been computed before the private step.
                    self._expected[place].append(self._with_other_records(place, self._start, back=True))
            self._seen.add(place)

        return hook

    def _after(self, place: int) -> Callable[..., None]:
        def hook(optimizer: Optimizer, arguments: Any, options: Any) -> None:
            self._watch.settle_step(optimizer)
            expected = self._expected.pop(place, None)
            if expected and not any(self._same(each, _gradients(optimizer)) for each in expected):
                self._refuse(messages.ELSEWHERE, place)

        return hook

    def _with_other_records(self, place: int, start: _Start, *, back: bool = False) -> list[Tensor]:
        """The gradient of the first step of an optimizer in this batch, if the batch had other records.

        Args:
            place: Of the optimizer.
            start: How the training step has begun, and begins again.
            back: With the weights that it has begun with, and not with those of now.
        """
        half = [row % (self._examples // 2) for row in range(self._examples)]
        other = BatchRows(self._batch, self._examples).take(half)
        found: list[list[Tensor]] = []

        def stepped(at: int) -> None:
            if at == place:
                found.append(_gradients(self._optimizers[place]))
                raise Enough

        with self._traceless(start) as again, start.weights() if back else contextlib.nullcontext():
            again()
            self._rehearsal.run(other, self._index, stepped=stepped)
        return found[0] if found else []

    # ---- parts ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _traceless(self, start: _Start | None = None) -> Iterator[Callable[[], None]]:
        """Training steps may be run inside, and leave nothing behind. Gives what forgets the gradients so far.

        Args:
            start: How the module is to be inside, but for its weights; None: as it is.
        """
        module, clipping = self._module, self._clipping
        gradients = [(value, value.grad, value.requires_grad) for value in module.parameters()]
        examples = clipping.examples

        def again() -> None:
            for value, _, _ in gradients:
                value.grad = None
            for value, wanted in self._wanting:
                value.requires_grad_(wanted)

        with unnoticed(module, clipping):
            if start is not None:
                start.restore()
            with silenced(module), without_loggers(self._trainer):
                clipping.examples = None  # nobody listens
                try:
                    yield again
                finally:
                    clipping.examples = examples
                    for value, gradient, wanted in gradients:
                        value.grad = gradient
                        value.requires_grad_(wanted)

    def _refuse(self, why: str, *places: int) -> None:
        names = {id(value): name for name, value in self._module.named_parameters()}
        optimizers = [self._optimizers[place] for place in places]
        held = [names[id(value)] for each in optimizers for value in _held(each) if id(value) in names]
        who = f"{', '.join(map(repr, held[:2]))}{' and others' if len(held) > 2 else ''}"
        raise FitError(why.format(who=who, private=repr(self._name), stopped=STOPPED))


def _equal(one: Stepped, other: Stepped) -> bool:
    """Whether gradients are the same, bit for bit."""
    return all(
        torch.equal(a, b)
        for (_, mine), (_, theirs) in zip(one, other, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )


class _Start:
    """How a training step has begun: the state of the module, all random numbers, and the weights.

    Args:
        module: What is trained.
    """

    def __init__(self, module: nn.Module) -> None:
        self._light, self._luck = LightState(module, listeners=False), RandomState()
        self._weights = [(value, value.detach().clone()) for value in module.parameters()]

    def restore(self) -> None:
        """Begin again; the weights stay as they are."""
        self._light.restore()
        self._luck.restore()

    @contextlib.contextmanager
    def weights(self) -> Iterator[None]:
        """Inside, the weights are those of the beginning."""
        now = [(value, value.detach().clone()) for value, _ in self._weights]
        try:
            _write(self._weights)
            yield
        finally:
            _write(now)


def _write(weights: list[tuple[nn.Parameter, Tensor]]) -> None:
    for value, content in weights:
        value.data.copy_(content)


def _held(optimizer: Any) -> Iterator[nn.Parameter]:
    return (value for group in optimizer.param_groups for value in group["params"])


def _gradients(optimizer: Any) -> list[Tensor]:
    """Copies of what an optimizer would step along; zeros where there is nothing."""
    return [
        value.new_zeros(value.shape) if value.grad is None else value.grad.detach().clone()
        for value in _held(optimizer)
    ]
