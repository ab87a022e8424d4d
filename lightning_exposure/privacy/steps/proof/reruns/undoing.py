"""Everything that a training step changes on its way, put back as it was: counters, metrics, lists, random numbers."""

from __future__ import annotations

import contextlib
import enum
import random
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_exposure._lightning import TRAINER_LINKS
from lightning_exposure._torch import FIXED_ATTRIBUTES

_LARGEST = 2**20
"""Tensors with more numbers are not copied: data, tables and weights, not state."""
_LONGEST = 10_000
_FOREIGN = {"lightning", "pytorch_lightning", "lightning_fabric", "transformers", "tokenizers", "wandb", "datasets"}


class LightState:
    """The light state of some objects: their attributes and what these hold, but for weights and data.

    Args:
        objects: Where to begin; everything that can be reached from there is remembered.
        listeners: Whether what listens to the layers, to make them private, is remembered as well.

    Example:
        >>> module = nn.Linear(1, 1)
        >>> module.seen, module.count = [], 0
        >>> before = LightState(module)
        >>> module.seen.append(1); module.count += 1
        >>> before.restore()
        >>> module.seen, module.count
        ([], 0)
    """

    def __init__(self, *objects: Any, listeners: bool = True) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}
        waiting = list(objects)
        while waiting:
            value = waiting.pop()
            if id(value) in self._known or not _is_state(value) or (_is_listener(value) and not listeners):
                continue
            content = _content(value)
            self._known[id(value)] = (value, content)
            waiting += _reached(value, content)

    def restore(self) -> None:
        """Put everything back as it was."""
        for value, content in self._known.values():
            _put_back(value, content)

    def randomness(self) -> list[str]:
        """How the generators that the objects have of their own stand now."""
        kinds = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
        return [_printed(_content(value)) for value, _ in self._known.values() if isinstance(value, kinds)]

    def fingerprint(self) -> list[bytes]:
        """What tensors and fractions hold now, to be compared with another time; counters are left out."""
        found = []
        for value, _ in self._known.values():
            if not _is_listener(value):  # that is no part of the model
                now = [value] if isinstance(value, Tensor) else _reached(value, _content(value))
                found += [_bytes(part) for part in now if isinstance(part, Tensor | float)]
        return found


def _is_listener(value: Any) -> bool:
    return type(value).__module__.startswith("lightning_exposure.privacy")


def _printed(state: Any) -> str:
    return str(state.tolist() if isinstance(state, Tensor) else state)


def _bytes(value: Tensor | float) -> bytes:
    if not isinstance(value, Tensor):
        return repr(value).encode()
    if isinstance(value, nn.Parameter) or value.numel() > _LARGEST:
        return b""
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _is_state(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not isinstance(value, nn.Parameter) and value.numel() <= _LARGEST
    if isinstance(value, np.ndarray):
        return value.size <= _LARGEST
    if isinstance(value, nn.Module | torch.Generator | np.random.Generator | np.random.RandomState | random.Random):
        return True
    if isinstance(value, list | dict | set | deque):
        return len(value) <= _LONGEST
    if isinstance(value, tuple):
        return True
    if isinstance(value, type | types.ModuleType | types.FunctionType | types.BuiltinFunctionType | enum.Enum):
        return False
    if isinstance(value, torch.utils.data.Dataset | torch.utils.data.DataLoader | torch.utils.hooks.RemovableHandle):
        return False
    if type(value).__module__.partition(".")[0] in _FOREIGN:
        return False
    return hasattr(value, "__dict__")


def _content(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, list | set | deque):
        return list(value)
    if isinstance(value, tuple):
        return value
    if isinstance(value, types.MethodType):
        return value.__self__
    return (dict(value) if isinstance(value, dict) else {}, dict(vars(value)) if hasattr(value, "__dict__") else {})


def _reached(value: Any, content: Any) -> list[Any]:
    if isinstance(value, list | set | deque | tuple):
        return list(content)
    if isinstance(value, types.MethodType):
        return [content]
    if isinstance(content, tuple) and len(content) == 2 and all(isinstance(part, dict) for part in content):
        is_module = isinstance(value, nn.Module)
        return [part for held in content for name, part in held.items() if not (is_module and _is_fixed(name))]
    return []


def _is_fixed(name: Any) -> bool:
    """Whether an attribute of a module is none that a training step changes: weights, the Trainer, who listens."""
    return name in (*TRAINER_LINKS, *FIXED_ATTRIBUTES) or "_hooks" in name


def _put_back(value: Any, content: Any) -> None:
    if isinstance(value, Tensor):
        if value.shape != content.shape or not torch.equal(value, content):
            with torch.no_grad():
                value.data.resize_(content.shape).copy_(content)
    elif isinstance(value, np.ndarray):
        value[...] = content
    elif isinstance(value, torch.Generator | np.random.RandomState):
        value.set_state(content)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = content
    elif isinstance(value, random.Random):
        value.setstate(content)
    elif isinstance(value, list):
        value[:] = content
    elif isinstance(value, set | deque):
        value.clear()
        (value.update if isinstance(value, set) else value.extend)(content)
    elif not isinstance(value, tuple | types.MethodType):
        items, attributes = content
        if isinstance(value, dict):
            value.clear()
            value.update(items)
        if attributes:
            vars(value).clear()
            vars(value).update(attributes)


class RandomState:
    """The states of all global generators: PyTorch's, NumPy's and Python's."""

    def __init__(self) -> None:
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        self.numpy = np.random.get_state()
        self.python = random.getstate()

    def restore(self) -> None:
        """Let all of them go on from here."""
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        np.random.set_state(self.numpy)
        random.setstate(self.python)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RandomState):
            return NotImplemented
        tensors = zip([self.cpu, *self.cuda], [other.cpu, *other.cuda], strict=False)
        mine, theirs = list(self.numpy), list(other.numpy)
        return (
            all(torch.equal(one, another) for one, another in tensors)
            and np.array_equal(mine[1], theirs[1])
            and mine[2:] == theirs[2:]
            and self.python == other.python
        )

    __hash__ = None  # type: ignore[assignment]


@contextlib.contextmanager
def unnoticed(*objects: Any) -> Iterator[LightState]:
    """Whatever happens inside leaves no trace: not in the state of some objects, nor in random numbers."""
    light, randomness = LightState(*objects), RandomState()
    try:
        yield light
    finally:
        light.restore()
        randomness.restore()
