"""What fails while secrets are measured must not carry them away: error trackers send local variables along."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from types import FrameType
from typing import Any, TypeVar

_PACKAGE = __name__.partition(".")[0]

_Method = TypeVar("_Method", bound=Callable[..., Any])


def without_locals(method: _Method) -> _Method:
    """Let a method that fails leave no local variables of this library behind in the traceback.

    The traceback itself stays as it is, and so do the variables of everyone else, such as the user's model. Debuggers
    and error trackers show all of them, and ours hold secrets. An object that has `reveal` set keeps its own.
    """

    @wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:
            if not getattr(self, "reveal", False):
                for frame in _frames(error, set()):
                    with suppress(RuntimeError):  # it is still running
                        frame.clear()
                args, kwargs = (), {}
            raise

    return guarded  # type: ignore[return-value]


def _frames(error: BaseException | None, seen: set[int]) -> Iterator[FrameType]:
    """Our frames in the traceback of an error, and of those that led to it."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    traceback = error.__traceback__
    while traceback is not None:
        if str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE:
            yield traceback.tb_frame
        traceback = traceback.tb_next
    yield from _frames(error.__cause__, seen)
    yield from _frames(error.__context__, seen)
