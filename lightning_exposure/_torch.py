"""What we use of PyTorch's private parts, each behind a name that says what it is for.

A test per function, in `tests/test_torch_private.py`, says by its name what has changed. PyTorch is not imported before
it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch import Tensor, nn

FIXED_ATTRIBUTES: Final = ("_parameters", "_non_persistent_buffers_set")
"""Attributes of a module that no training step changes."""


# ---- tensors --------------------------------------------------------------------------------------------------


def writes_to(tensor: Tensor) -> int:
    """How often a tensor was written to in place, as autograd counts it; writing to `tensor.data` is not counted."""
    return int(tensor._version)


def is_view(tensor: Tensor) -> bool:
    """Whether a tensor is a view of another one."""
    return bool(tensor._is_view())


def as_no_view(tensor: Tensor) -> Tensor:
    """The same numbers in the same memory as a tensor that is no view; only right if nobody else has the memory."""
    import torch

    found: Tensor = torch.ops.aten._unsafe_view(tensor, tensor.shape)
    return found


def gradient_is_hooked(parameter: Tensor) -> bool:
    """Whether somebody hooked into the gradient of a parameter."""
    hooks: Any = parameter._backward_hooks
    return bool(hooks) or bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


# ---- layers ---------------------------------------------------------------------------------------------------


def has_old_backward_hook(layer: nn.Module) -> bool:
    """Whether a layer has a hook by `register_backward_hook`, which `register_full_backward_hook` has replaced."""
    return bool(layer._backward_hooks) and layer._is_full_backward_hook is False


def convolves_like(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer has the inner function of a kind of convolution, or has none as that one has none."""
    return getattr(type(layer), "_conv_forward", None) is getattr(kind, "_conv_forward", None)


def padding_of(layer: nn.Conv1d) -> Sequence[int]:
    """How far a convolution pads its inputs, as `functional.pad` takes it."""
    return layer._reversed_padding_repeated_twice


def attention_with(linear: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """PyTorch's `functional.multi_head_attention_forward` with another function in the place of `functional.linear`.

    Args:
        linear: Called with inputs, weight and bias (or None): of the queries, keys and values, in one call if they are
            the same tensor, and for the outputs, whose steps and rows are flattened into one dimension.
    """
    from torch.nn import functional

    names: dict[str, Any] = {**vars(functional), "linear": linear}
    for name in ("_in_projection", "_in_projection_packed"):
        names[name] = _seeing(names, getattr(functional, name))
    return _seeing(names, functional.multi_head_attention_forward)


def _seeing(names: dict[str, Any], function: Any) -> Callable[..., Any]:
    """The same code, seeing other names around it."""
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)


def is_dropout(layer: nn.Module) -> bool:
    """Whether a layer is one of PyTorch's dropout layers."""
    from torch.nn.modules.dropout import _DropoutNd

    return isinstance(layer, _DropoutNd)


def own_buffers(layer: nn.Module) -> dict[str, Tensor | None]:
    """The buffers of a layer itself by name, those that are None among them; changing the dictionary changes them."""
    return layer._buffers


# ---- schedules ------------------------------------------------------------------------------------------------


def inner_schedules(scheduler: Any) -> Sequence[Any]:
    """The schedules that a schedule is made of: `SequentialLR` and `ChainedScheduler` have some."""
    found: Sequence[Any] = getattr(scheduler, "_schedulers", ())
    return found
