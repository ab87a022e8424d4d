"""The seams of a training run: the hooks between two private steps, and who may move the weights in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_exposure._checks import refusal
from lightning_exposure._lightning import AVERAGING_HOOKS
from lightning_exposure.callbacks.private._refusals import is_overridden
from lightning_exposure.errors import FitError

_MARK = "_wrapped_while_private"


def check_names(names: object) -> tuple[str, ...]:
    """The names of what may move weights.

    Raises:
        ArgumentError: They are not a list of names.
    """
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise refusal(
            "post_processing",
            names,
            "a list of names: of callbacks (their class), of hooks of the module, or of saved state",
            'For example post_processing=["MaxNorm", "on_train_batch_end"].',
        )
    return tuple(dict.fromkeys(names))


def exempt_hooks(
    names: Iterable[str], trainer: Trainer, module: LightningModule, callback: object, saved: Iterable[str]
) -> Iterator[tuple[object, str]]:
    """The hooks in which weights may move: those that the user names, and Lightning's own averages of weights.

    Args:
        names: "MaxNorm": all hooks of the callbacks of that class. "on_train_batch_end": the module's own hook.
            "MaxNorm.on_train_batch_end": one hook of a callback. Names of saved state are passed over.
        trainer: Whose callbacks they are.
        module: What is trained.
        callback: The one that is never meant.
        saved: Names of saved state.

    Raises:
        FitError: A name is that of nothing.
    """
    others: list[Any] = [other for other in trainer.callbacks if other is not callback]  # type: ignore[attr-defined]
    known = set(saved)
    for name in names:
        kind, _, single = name.partition(".")
        found = [(other, hook) for other in others if type(other).__name__ == kind for hook in _hooks(other, single)]
        if is_overridden(name, module, "LightningModule"):
            found.append((module, name))
        if not found and name not in known:
            classes = ", ".join(sorted({type(other).__name__ for other in others})) or "none"
            raise FitError(
                f"post_processing: {name!r} is neither the class of another callback of the Trainer ({classes}), nor a "
                f"hook that {type(module).__name__} overrides, nor the name of saved state. Correct it, or leave it "
                "out."
            )
        yield from found
    for other in others:
        yield from ((other, hook) for hook in _averaging(other))


def _hooks(callback: Any, single: str) -> list[str]:
    names = [name for name in dir(callback) if name.startswith("on_") and is_overridden(name, callback, "Callback")]
    return [name for name in names if name == single or not single]


def _averaging(callback: Any) -> Iterator[str]:
    for kind in type(callback).__mro__:
        if kind.__module__.startswith(("lightning.pytorch.", "pytorch_lightning.")):
            for hook in AVERAGING_HOOKS.get(kind.__name__, ()):
                # As Lightning has it; what a subclass does instead is not known.
                if getattr(type(callback), hook).__module__ == kind.__module__:
                    yield hook


def wrap(owner: Any, hook: str, around: Callable[[], AbstractContextManager[Any]]) -> Callable[[], None]:
    """Run a hook of a module or callback inside of a context, from now on. Returns what undoes it."""
    original = getattr(owner, hook)

    @wraps(original)
    def wrapped(*args: Any, **options: Any) -> Any:
        with around():
            return original(*args, **options)

    return put(owner, hook, wrapped)


def put(owner: Any, hook: str, function: Any) -> Callable[[], None]:
    """Put a function in the place of a hook. Returns what undoes it."""
    had, before = hook in vars(owner), vars(owner).get(hook)
    # A plain function: whoever copies a module deeply, as callbacks that average weights do, shares it.
    setattr(function, _MARK, True)
    vars(owner)[hook] = function

    def undo() -> None:
        vars(owner).pop(hook, None)
        if had:
            vars(owner)[hook] = before

    return undo


def unwrap(module: Any) -> None:
    """Give a copy of a module its own hooks back."""
    for name in [name for name, value in vars(module).items() if getattr(value, _MARK, False)]:
        del vars(module)[name]
