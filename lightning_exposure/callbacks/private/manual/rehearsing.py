"""A training step that makes its steps itself, run with optimizers that move nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_exposure._lightning import takes_batch_index
from lightning_exposure.callbacks.private.watching.seams import put
from lightning_exposure.errors import FitError

Told = Callable[[int], None]
"""Is told the place of an optimizer among all."""


class Enough(BaseException):
    """Ends a rehearsal: what was wanted is known. No error, and not caught as one."""


class Rehearsal:
    """Runs the training step of a module, or of a copy of it; its optimizers do nothing but tell.

    The hooks of the module around backward passes and steps are called. Weights stay as they are, and so does what
    wants gradients; attributes, gradients and random numbers are for the caller to put back.

    Args:
        trainer: That trains.
        module: Whose training step it is.
        copy_of: The module that the optimizers of the Trainer belong to; None: this one.

    Attributes:
        losses: What was sent back in the last run, number by number.
    """

    def __init__(self, trainer: Any, module: Any, copy_of: Any = None) -> None:
        self._trainer, self._module = trainer, module
        self._original = module if copy_of is None else copy_of
        self._stepped: Told = _nothing
        self._cleared: Told = _nothing
        self._runs = 0
        self.losses: list[float] = []

    def run(
        self,
        batch: Any,
        batch_idx: int,
        *,
        times: float = 1.0,
        stepped: Told | None = None,
        cleared: Told | None = None,
    ) -> Any:
        """Go through a batch.

        Args:
            batch: Any batch.
            batch_idx: What the step is told, if it wants to know.
            times: What every loss is multiplied with on its way back.
            stepped: Called when an optimizer would step, with its place among all; it may raise `Enough`.
            cleared: Called when the gradients of one are cleared, with its place.

        Returns:
            What the training step has returned; None if it did not come to its end.
        """
        self.losses, self._stepped, self._cleared = [], stepped or _nothing, cleared or _nothing
        step = self._module.training_step
        arguments = (batch, batch_idx) if takes_batch_index(step) else (batch,)
        with self._on_stage(times), self._trainer.precision_plugin.train_step_context(), torch.enable_grad():
            return step(*arguments)
        return None

    @contextlib.contextmanager
    def _on_stage(self, times: float) -> Iterator[None]:
        module = self._module
        stubs = [StubOptimizer(self, place, groups) for place, groups in enumerate(self._groups())]
        before = [(value, value.requires_grad, value.detach().clone()) for value in module.parameters()]
        wanted = {id(value): wants for value, wants, _ in before}

        def optimizers(use_pl_optimizer: bool = True) -> Any:
            return stubs[0] if len(stubs) == 1 else list(stubs)

        def manual_backward(loss: Any, *args: Any, **options: Any) -> None:
            self.losses.append(float(loss.detach()))
            module.on_before_backward(loss)
            module.backward(loss * times, *args, **options)
            module.on_after_backward()

        def toggle_optimizer(optimizer: Any) -> None:
            mine = {id(value) for value in _held([optimizer])}
            for value in _held(stubs):
                value.requires_grad_(id(value) in mine and wanted.get(id(value), True))

        def untoggle_optimizer(optimizer: Any) -> None:
            for value in _held(stubs):
                value.requires_grad_(wanted.get(id(value), True))

        names = (optimizers, manual_backward, toggle_optimizer, untoggle_optimizer)
        with contextlib.ExitStack() as undo, contextlib.suppress(Enough):
            self._runs += 1
            undo.callback(self._ended)
            for function in names:
                undo.callback(put(module, function.__name__, function))
            undo.callback(_put_back, before)
            yield

    def _groups(self) -> Iterator[list[dict[str, Any]]]:
        """The parameters of each optimizer, and what it is set to; of a copy, its own."""
        names = {id(value): name for name, value in self._original.named_parameters()}
        own = dict(self._module.named_parameters())
        for optimizer in self._trainer.optimizers:
            yield [
                {**group, "params": [own.get(names.get(id(value), ""), value) for value in group["params"]]}
                for group in optimizer.param_groups
            ]

    def refuse_steps(self) -> None:
        """Called when an optimizer of the Trainer steps.

        Raises:
            FitError: It does so in a rehearsal.
        """
        if self._runs:
            raise FitError(
                "A training step was run again to see what it does, and has stepped an optimizer that it keeps: that "
                "cannot be told from a step of the training. Ask for the optimizers in training_step: "
                "self.optimizers()."
            )

    def tell(self, place: int, stub: StubOptimizer | None) -> None:
        """An optimizer would step; None: its gradients are cleared."""
        if stub is None:
            self._cleared(place)
        else:
            self._module.on_before_optimizer_step(stub)
            self._stepped(place)

    @contextlib.contextmanager
    def toggled(self, stub: StubOptimizer) -> Iterator[None]:
        """As `toggle_model` of Lightning's optimizers."""
        self._module.toggle_optimizer(stub)
        yield
        self._module.untoggle_optimizer(stub)

    def _ended(self) -> None:
        self._runs -= 1


class StubOptimizer:
    """In the place of an optimizer: has its settings, but makes no step.

    Args:
        rehearsal: Is told.
        place: Which of the optimizers it stands for.
        groups: Its parameters and settings.
    """

    def __init__(self, rehearsal: Rehearsal, place: int, groups: list[dict[str, Any]]) -> None:
        self._rehearsal, self._place = rehearsal, place
        self.param_groups, self.state, self.defaults = groups, {}, {}  # type: ignore[var-annotated]

    @property
    def optimizer(self) -> StubOptimizer:
        """As Lightning's optimizers have it."""
        return self

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Tell, and move nothing."""
        found = None if closure is None else closure()
        self._rehearsal.tell(self._place, self)
        return found

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        for value in _held([self]):
            value.grad = None
        self._rehearsal.tell(self._place, None)

    def toggle_model(self, sync_grad: bool = True) -> contextlib.AbstractContextManager[None]:
        """As Lightning's optimizers have it."""
        return self._rehearsal.toggled(self)


def _held(optimizers: Sequence[Any]) -> Iterator[nn.Parameter]:
    return (value for optimizer in optimizers for group in optimizer.param_groups for value in group["params"])


def _put_back(before: list[tuple[nn.Parameter, bool, Tensor]]) -> None:
    """Weights, which a training step may write to by itself, and whether they want gradients."""
    for value, wants, content in before:
        value.requires_grad_(wants)
        if not torch.equal(value, content):
            value.data.copy_(content)


def _nothing(place: int) -> None:
    """Nobody wants to know."""
