"""Learning rates must not follow the training data: what sets them is run once more, as if no batch had been.

A schedule that is a function of the number of steps is harmless; one that looks at the module, or at whatever else a
batch has changed, is not, and from outside they look the same. So with every step of a schedule that can look around,
the attributes of module and callbacks are put back to what they were before the first batch (but for counters of
steps), what the training loop has logged is taken away, and the schedule is asked again. If it then says something
else, it follows the training, and not a plan.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from lightning_exposure._lightning import metrics_hidden
from lightning_exposure._torch import inner_schedules
from lightning_exposure.callbacks.private._refusals import is_overridden
from lightning_exposure.callbacks.private.watching.monitors import followed_metrics
from lightning_exposure.callbacks.private.watching.rerunning import silenced
from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.fingerprints import content
from lightning_exposure.privacy.steps.proof.reruns.undoing import LightState, unnoticed
from lightning_exposure.privacy.steps.watching import STOPPED


class Blind:
    """Runs what sets learning rates once more, without what the batches have left behind.

    Args:
        trainer: Who trains.
        module: What is trained.
        optimizer: The user's own optimizer.
        callback: The one that makes it private, which is left alone.
        exempt: The names of what the user vouches for.
    """

    def __init__(
        self, trainer: Any, module: Any, optimizer: Any, callback: object, exempt: tuple[str, ...] = ()
    ) -> None:
        self._trainer, self._module, self._optimizer = trainer, module, optimizer
        others = [other for other in trainer.callbacks if other is not callback]
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        self._stepping = is_overridden("lr_scheduler_step", module, "LightningModule")
        looks = self._stepping or not all(_is_plan(scheduler) for scheduler in schedulers)
        self._schedules = looks and "lr_scheduler_step" not in exempt
        self._steps = is_overridden("optimizer_step", module, "LightningModule")
        reached = [value for scheduler in schedulers for value in _reached_by(scheduler)]
        self._objects = [module, *(vars(other) for other in others), *reached]
        self._before: LightState | None = None
        self._counts: dict[str, int] = {}
        self._batches = 0

    def begin(self) -> None:
        """Before a batch."""
        if self._before is None and (self._schedules or self._steps):
            self._before, self._counts = LightState(*self._objects), _whole_numbers(self._module)
        self._batches += 1

    def check_schedule(self, step: Callable[..., Any], scheduler: Any, metric: Any) -> None:
        """Refuse a schedule that follows what a batch has changed; called before it steps.

        Raises:
            FitError: Names it.
        """
        if not self._schedules or self._before is None:
            return
        with _as_it_was(self._optimizer, scheduler):
            seen = self._try(lambda: step(scheduler, metric), scheduler)
        with _as_it_was(self._optimizer, scheduler), self._blinded():
            blind = self._try(lambda: step(scheduler, metric), scheduler)
        if blind != seen and seen is not None:
            hook = f", stepped by {type(self._module).__name__}.lr_scheduler_step," if self._stepping else ""
            raise FitError(
                f"{type(scheduler).__name__}{hook} goes another way than it would have without the "
                "batches so far: it follows something that training changes, such as an attribute of the module or "
                f"what was logged, and the weights would follow the training data without noise. {STOPPED} Compute the "
                "rate of the number that the schedule is given; or, if the training data have no part in it, vouch for "
                'a hook of the module: DifferentialPrivacy(post_processing=["lr_scheduler_step"]).'
            )

    def check_step(
        self, step: Callable[..., Any], arguments: list[Any], options: dict[str, Any], before: list[dict[str, Any]]
    ) -> bool:
        """Whether an `optimizer_step` that sets learning rates after the step does so without a look at the batch.

        Args:
            step: The module's own.
            arguments: What it was called with.
            options: The same, by name.
            before: What the optimizer was set to after the step.
        """
        if not self._steps or self._before is None:
            return False
        now = content([settings(self._optimizer), []])
        given = list(arguments)
        given[2:4] = [_Stub(self._optimizer), lambda: None]
        with _as_it_was(self._optimizer), self._blinded():
            for group, values in zip(self._optimizer.param_groups, before, strict=True):
                group.update(copy.deepcopy(values))
            blind = self._try(lambda: step(*given, **options))
        return blind == now

    def _try(self, act: Callable[[], Any], scheduler: Any = None) -> int | None:
        """What the optimizer is set to afterwards, and what a schedule remembers, as the best value that it saw."""
        try:
            act()
        except Exception:
            return None  # it missed what it looks at
        held = [value for part in _parts(scheduler) for value in vars(part).values()]
        remembered = [value for value in held if isinstance(value, int | float | Tensor)]
        return content([settings(self._optimizer), remembered])

    @contextlib.contextmanager
    def _blinded(self) -> Iterator[None]:
        assert self._before is not None
        with unnoticed(*self._objects), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            counts = _whole_numbers(self._module)
            self._before.restore()
            # What has counted the batches knows nothing else of them.
            vars(self._module).update(
                {name: now for name, now in counts.items() if now - self._counts.get(name, now) == self._batches}
            )
            with silenced(self._module), metrics_hidden(self._trainer, followed_metrics(self._trainer)):
                yield


def _whole_numbers(module: Any) -> dict[str, int]:
    return {name: value for name, value in vars(module).items() if type(value) is int}


def settings(optimizer: Any) -> list[dict[str, Any]]:
    """What an optimizer is set to, group by group."""
    return [{key: group[key] for key in sorted(group) if key != "params"} for group in optimizer.param_groups]


@contextlib.contextmanager
def _as_it_was(optimizer: Any, scheduler: Any = None) -> Iterator[None]:
    """Whatever happens inside, afterwards the groups of an optimizer and a schedule are as they were."""
    groups = list(zip(optimizer.param_groups, copy.deepcopy(settings(optimizer)), strict=True))
    held = [(part, {key: _copied(value) for key, value in vars(part).items()}) for part in _parts(scheduler)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for group, before in groups:
            parameters = group["params"]
            group.clear()
            group.update(before, params=parameters)
        for part, attributes in held:
            vars(part).clear()
            vars(part).update(attributes)


def _copied(value: Any) -> Any:
    return copy.copy(value) if isinstance(value, list | dict | set) else value


def _parts(scheduler: Any) -> Iterator[Any]:
    """A schedule, and those that it is made of."""
    if hasattr(scheduler, "__dict__"):
        yield scheduler
        for inner in inner_schedules(scheduler):
            yield from _parts(inner)


def _is_plan(scheduler: Any) -> bool:
    """Whether a schedule is one of PyTorch's own, and can look at nothing but the number of its steps."""
    own = type(scheduler).__module__ == "torch.optim.lr_scheduler"
    return own and all(not _functions(part) for part in _parts(scheduler))


def _functions(scheduler: Any) -> list[Any]:
    """The functions of the user's that a schedule calls; plain ones, of numbers alone, are left out."""
    held = [*vars(scheduler).values(), *(getattr(scheduler, "lr_lambdas", None) or ())]
    kinds = (types.FunctionType, types.MethodType, functools.partial)
    named = [value for value in held if isinstance(value, kinds) and not _is_torchs(value)]
    made = [value for value in getattr(scheduler, "lr_lambdas", None) or () if not isinstance(value, kinds)]
    return [value for value in (*named, *made) if not _is_closed(value)]


def _is_torchs(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("torch.")


def _is_closed(function: Any) -> bool:
    """Whether a function sees nothing but numbers and texts beside its argument."""
    if isinstance(function, functools.partial):
        given = [*function.args, *function.keywords.values()]
        return all(_is_plain(value) for value in given) and _is_closed(function.func)
    if not isinstance(function, types.FunctionType):
        return False
    return all(_is_plain(value) for value in _seen_by(function))


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    plain = int | float | str | bytes | None | types.ModuleType | type | types.BuiltinFunctionType
    return isinstance(value, plain)


def _seen_by(function: types.FunctionType) -> list[Any]:
    code, globals_ = function.__code__, function.__globals__
    cells = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty one
            cells.append(cell.cell_contents)
    return [*cells, *(function.__defaults__ or ()), *(globals_[name] for name in code.co_names if name in globals_)]


def _reached_by(scheduler: Any) -> list[Any]:
    """What the functions of a schedule can look at."""
    found: list[Any] = []
    for part in _parts(scheduler):
        for function in _functions(part):
            inner = function.func if isinstance(function, functools.partial) else function
            found += _seen_by(inner) if isinstance(inner, types.FunctionType) else [inner]
    return [value for value in found if not _is_plain(value)]


class _Stub:
    """In the place of an optimizer: has its settings, and calls closures, but makes no step."""

    def __init__(self, optimizer: Any) -> None:
        self.param_groups, self.state, self.defaults = optimizer.param_groups, optimizer.state, optimizer.defaults

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        return None if closure is None else closure()

    def zero_grad(self, *args: Any, **options: Any) -> None:
        """There is nothing to clear."""
