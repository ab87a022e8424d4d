"""The gradients of single examples, seen by running a training step again on other batches, without a trace."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from lightning_exposure._torch import is_dropout
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.steps.proof.coordinates import Coordinates
from lightning_exposure.privacy.steps.proof.reruns.undoing import LightState, RandomState, unnoticed

Step = Callable[[Any], Tensor | None]
"""Runs a training step on a batch, and gives its loss."""
Gradients = Iterator[tuple[str, list[Tensor]]]
"""For each parameter its gradients, one for each example that is looked at."""


@dataclass(frozen=True)
class Seen:
    """What was seen of one gradient.

    Attributes:
        parts: Some numbers of it, by parameter; all of them, if the model is small.
        norms: The norm of all numbers of each parameter.
        randomness: How the global generators stood afterwards.
        random: Whether they had moved, or generators of the module's own.
        changed: Whether the module's state was another one afterwards.
    """

    parts: Mapping[str, Tensor]
    norms: Mapping[str, float]
    randomness: RandomState
    random: bool
    changed: bool

    @cached_property
    def numbers(self) -> Tensor:
        """Some numbers of the gradient, in a row."""
        return torch.cat([part.double().cpu() for part in self.parts.values()])

    @cached_property
    def norm(self) -> float:
        """The norm of all numbers."""
        return math.hypot(*self.norms.values())

    def within(self, names: Iterable[str]) -> Seen:
        """What was seen of some parameters."""
        chosen = list(names)
        parts = {name: self.parts[name] for name in chosen}
        return replace(self, parts=parts, norms={name: self.norms[name] for name in chosen})

    def differs_from(self, other: Seen, tolerance: float, floor: float = 0.0) -> bool:
        """Whether the gradient is another one, by more than a part of its length and by more than a floor."""
        largest = max(self.norm, other.norm)
        if not largest:
            return False
        sketch = max(float(self.numbers.norm()), float(other.numbers.norm()))
        longer, apart = self._distances(other)
        # Also where numbers are none: those of a healthy model are compared to nothing else.
        return not (longer <= max(tolerance * largest, floor) and apart <= max(tolerance * sketch, floor))

    def distance(self, other: Seen) -> float:
        """How far the gradient is from another one, at least."""
        return max(self._distances(other))

    def _distances(self, other: Seen) -> tuple[float, float]:
        return abs(self.norm - other.norm), float((self.numbers - other.numbers).norm())

    def is_parallel_to(self, other: Seen, tolerance: float) -> bool:
        """Whether the gradient is the same but for its length."""
        lengths = float(self.numbers.norm()) * float(other.numbers.norm())
        return lengths > 0 and abs(float(self.numbers @ other.numbers)) >= (1 - tolerance) * lengths


class Examples:
    """Runs training steps again, and looks at the gradient of the first example of the batch.

    Every run begins with the same random numbers and the same state of the module, and leaves both as they were.

    Args:
        clipping: Of the module, attached.
        step: Runs a training step.
        coordinates: Which numbers are looked at.
        whole: What the module is a part of, if the step runs more than it; None: nothing.
    """

    def __init__(
        self, clipping: Clipping, step: Step, coordinates: Coordinates, whole: nn.Module | None = None
    ) -> None:
        self._clipping, self._step, self._coordinates = clipping, step, coordinates
        self._whole = clipping.module if whole is None else whole
        self._state: LightState | None = None

    @property
    def blocks(self) -> list[list[str]]:
        """The names of the parameters over which each norm is taken."""
        names = {value: name for name, value in self.module.named_parameters()}
        return [[names[value] for value in block] for block in self._clipping.blocks]

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Several runs in a row, for which everything is remembered once."""
        with torch.enable_grad(), unnoticed(self._whole, self._clipping) as self._state:
            try:
                yield
            finally:
                self._state = None

    def inside(self, batch: Any, examples: int, *, look: int = 1, after: Any = None) -> list[Seen]:
        """The gradients of the first examples in a batch, as clipping sees them.

        Args:
            batch: What the module is shown.
            examples: How many examples it has; `Grouped`, if users are looked at.
            look: How many of them are looked at.
            after: What it is shown before, if anything.
        """

        def gradients() -> Gradients:
            self._clipping.begin(examples)
            self._backward(batch)
            return self._clipping.gradients_of(range(look))

        return self._run(gradients, after, watch=True)

    def alone(self, batch: Any, *, times: float = 1.0) -> Seen:
        """The gradient of the only example in a batch, by autograd and nothing else.

        Args:
            batch: What the module is shown; all examples of the only user.
            times: What its loss is multiplied with.
        """

        def gradients() -> Gradients:
            self._clipping.examples = None  # nobody listens
            named = [(name, value) for name, value in self.module.named_parameters() if value.requires_grad]
            found = self._plain_gradients(batch, [value for _, value in named], times)
            for (name, value), part in zip(named, found, strict=True):
                yield name, [torch.zeros_like(value) if part is None else part.detach()]

        return self._run(gradients)[0]

    def clipped(self, batch: Any, examples: int = 1, *, times: float) -> Seen:
        """What the only example in a batch, or the only user, gives to the clipped sum, if its loss is multiplied."""

        def gradients() -> Gradients:
            self._clipping.begin(examples)
            self._backward(batch, times)
            names = {value: name for name, value in self.module.named_parameters()}
            return ((names[value], [part]) for value, part in self._clipping.clipped_sum().items())

        return self._run(gradients)[0]

    @contextlib.contextmanager
    def without_dropout(self) -> Iterator[None]:
        """Meanwhile what drops numbers at random, such as nn.Dropout and nn.LSTM(dropout=...), drops none."""
        rates = [(part, name, getattr(part, name)) for part in self._whole.modules() for name in _dropouts(part)]
        for part, name, _ in rates:
            setattr(part, name, 0.0)
        outer = self._state
        try:
            # Every run puts back what is remembered, and these rates are to stay.
            with self.session():
                yield
        finally:
            self._state = outer
            for part, name, rate in rates:
                setattr(part, name, rate)

    @contextlib.contextmanager
    def nudged(self, part: float, seed: int) -> Iterator[None]:
        """Meanwhile every weight is another one by a small part of it: as rounding would have it."""
        kept = [(value, value.detach().clone()) for value in self._whole.parameters()]
        generator = torch.Generator().manual_seed(seed)
        try:
            for value, before in kept:
                signs = torch.randint(2, before.shape, generator=generator, dtype=torch.int8).to(before.device) * 2 - 1
                value.data.copy_(before * (1 + part * signs.to(before.dtype)))
            yield
        finally:
            for value, before in kept:
                value.data.copy_(before)

    @property
    def module(self) -> nn.Module:
        """Whose gradients they are."""
        return self._clipping.module

    def _forward(self, batch: Any) -> None:
        """Show the module a batch, for what it remembers of it."""
        self._step(batch)

    def _backward(self, batch: Any, times: float = 1.0) -> None:
        """Go through a batch and back, to the parameters; the loss multiplied with a number."""
        torch.autograd.backward(self._loss(batch) * times)

    def _plain_gradients(
        self, batch: Any, parameters: Sequence[nn.Parameter], times: float = 1.0
    ) -> Sequence[Tensor | None]:
        """The gradients of some parameters, by autograd."""
        return torch.autograd.grad(self._loss(batch) * times, list(parameters), allow_unused=True)

    def _loss(self, batch: Any) -> Tensor:
        loss = self._step(batch)
        if loss is None:
            raise ValueError("The training step gave no loss.")
        return loss

    def _run(self, gradients: Callable[[], Gradients], after: Any = None, *, watch: bool = False) -> list[Seen]:
        light, before = self._state, RandomState()
        if light is None:
            with self.session():
                return self._run(gradients, after, watch=watch)
        kept = [(value, value.grad) for value in self._whole.parameters()]
        state, own = light.fingerprint() if watch else [], light.randomness()
        parts: list[dict[str, Tensor]] = []
        norms: list[dict[str, float]] = []
        try:
            if after is not None:
                self._clipping.examples = None
                self._forward(after)
                before.restore()
            for name, found in gradients():
                parts, norms = parts or [{} for _ in found], norms or [{} for _ in found]
                for place, values in enumerate(found):
                    parts[place][name] = self._coordinates.of_one(name, values)
                    norms[place][name] = float(torch.linalg.vector_norm(values, dtype=torch.float64))
            randomness = RandomState()
            moved = randomness != before or light.randomness() != own
            changed = watch and light.fingerprint() != state
        finally:
            self._clipping.examples = None
            self._clipping.forget()
            for value, grad in kept:
                value.grad = grad
            light.restore()
            before.restore()
        return [
            Seen(numbers, lengths, randomness, moved, changed) for numbers, lengths in zip(parts, norms, strict=True)
        ]


def _dropouts(part: nn.Module) -> list[str]:
    """The names of a module's dropout rates."""
    if is_dropout(part):
        return ["p"]
    return [name for name, value in vars(part).items() if "drop" in name and isinstance(value, float) and 0 < value < 1]
