"""Which models can be trained privately; what to do about the others, said before training begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from lightning_exposure._torch import gradient_is_hooked, has_old_backward_hook
from lightning_exposure.errors import ModelError
from lightning_exposure.privacy.clipping._layers import rule_for


def refuse_unsupported(module: nn.Module) -> None:
    """Refuse a module with parts whose per-example gradients do not exist or cannot be found.

    Raises:
        ModelError: Names every such part, and says what to do about it.

    Example:
        >>> refuse_unsupported(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.ModelError: The model cannot be trained privately as it is:
        - '1' (BatchNorm1d): its statistics mix the examples of a batch, ...
    """
    problems = [f"- {_called(name, part)}: {problem}" for name, part, problem in _problems(module)]
    if not problems and not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelError("The model has no trainable parameters: nothing to train, privately or not.")
    if problems:
        raise ModelError("\n".join(["The model cannot be trained privately as it is:", *problems]))


def mixes_examples(part: nn.Module) -> bool:
    """Whether a layer, in its present mode, lets the examples of a batch see each other or remembers them.

    Example:
        >>> mixes_examples(nn.BatchNorm1d(3)), mixes_examples(nn.BatchNorm1d(3).eval())
        (True, False)
    """
    if isinstance(part, _BatchNorm):
        return part.training or not part.track_running_stats
    return isinstance(part, _InstanceNorm) and part.track_running_stats and part.training


def hooked(part: nn.Module) -> str | None:
    """What is wrong with the hooks on a layer's weights, or on its backward pass; None if nothing is.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> _ = layer.weight.register_hook(lambda gradient: 2 * gradient)
        >>> hooked(layer)
        "has hooks on the gradient of 'weight', which would never ..."
    """
    names = [name for name, value in part.named_parameters(recurse=False) if gradient_is_hooked(value)]
    if names:
        return (
            f"has hooks on the gradient of {_listed(names)}, which would never be called: the gradients of single "
            "examples are found in another way. Remove them (register_hook, register_post_accumulate_grad_hook)."
        )
    if has_old_backward_hook(part):
        return "has a hook by register_backward_hook, which sees other gradients; use register_full_backward_hook."
    return None


def own_trainable(part: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters that are a module's own, not those of its children."""
    return {name: value for name, value in part.named_parameters(recurse=False) if value.requires_grad}


def layers_of(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The names and modules of all layers to listen to: leaves with trainable parameters of their own."""
    for name, part in module.named_modules():
        if own_trainable(part) and not any(True for _ in part.children()):
            yield name, part


def _problems(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    held = {id(value) for _, layer in layers_of(module) for value in own_trainable(layer).values()}
    inside: list[str] = []
    for name, part in module.named_modules():
        if any(name.startswith(prefix) for prefix in inside):
            continue
        problem = _problem_of(part, held)
        if problem:
            yield name, part, problem
            # One remedy for the whole of it.
            inside.append(f"{name}.")


def _problem_of(part: nn.Module, held: set[int]) -> str | None:
    if mixes_examples(part) or (isinstance(part, _BatchNorm) and own_trainable(part)):
        return (
            "its statistics mix the examples of a batch, or remember them; use nn.GroupNorm or nn.LayerNorm, or "
            "freeze it and leave it in eval mode."
        )
    if any(is_lazy(value) for value in part.parameters(recurse=False)):
        return "its parameters have no shape yet; show the model a batch before training."
    trainable = own_trainable(part)
    if trainable and hooked(part):
        return hooked(part)
    for kinds, problem in _REFUSED:
        if isinstance(part, kinds) and any(value.requires_grad for value in part.parameters()):
            return problem
    if is_parametrized(part) and any(value.requires_grad for value in part.parameters()):
        return "computes its weights from others; remove the parametrization (nn.utils.parametrize), or freeze it."
    if not trainable:
        return None
    for kind, check in _CHECKS:
        if isinstance(part, kind):
            return check(part)
    if any(True for _ in part.children()):
        return _problem_of_container(trainable, held)
    rule = rule_for(part)
    if rule.vectorized and any(True for _ in part.buffers()):
        return "has buffers, and its kind is not known here; freeze it, or make it of known layers."
    unknown = sorted(set(trainable) - (rule.names or set(trainable)))
    if unknown:
        return f"has parameters that a {type(part).__name__} does not have, {_listed(unknown)}; remove or freeze them."
    return None


def _problem_of_container(trainable: dict[str, nn.Parameter], held: set[int]) -> str | None:
    # A parameter that a layer below holds too is that layer's.
    loose = sorted(name for name, value in trainable.items() if id(value) not in held)
    if not loose:
        return None
    return (
        f"has parameters of its own beside its layers, {_listed(loose)}; put them into a layer of their own (a module "
        "that takes one tensor and returns one), or freeze them with requires_grad_(False)."
    )


def _problem_of_recurrent(part: Any) -> str | None:
    kind = nn.LSTM if isinstance(part, nn.LSTM) else nn.GRU
    if part.bidirectional:
        return "runs in both directions; use bidirectional=False, or two layers, one of them on the reversed sequence."
    if part.proj_size > 0:
        return "projects its hidden states; use proj_size=0, with an nn.Linear after it."
    if type(part).forward is not kind.forward or "forward" in vars(part):
        return f"is an nn.{kind.__name__} with a forward of its own; use nn.{kind.__name__} itself, as a part."
    return None


def _problem_of_embedding(part: Any) -> str | None:
    wrong = [name for name in ("max_norm", "sparse", "scale_grad_by_freq") if getattr(part, name) not in (None, False)]
    return f"has {_listed(wrong)} set; leave it out." if wrong else None


_REFUSED: tuple[tuple[tuple[type[nn.Module], ...], str], ...] = (
    (
        (torch.jit.ScriptModule,),
        "is compiled by torch.jit, which cannot be listened to; train it as it is, and compile it afterwards.",
    ),
    (
        (nn.MultiheadAttention,),
        "keeps its weights where no per-example gradients can be found; make attention of nn.Linear layers and "
        "functional.scaled_dot_product_attention, as lightning_exposure.modules does, or use "
        "opacus.layers.DPMultiheadAttention(batch_first=True).",
    ),
    ((nn.RNN,), "has no fast private version; use nn.GRU or nn.LSTM, or opacus.layers.DPRNN."),
    (
        (nn.RNNCell, nn.LSTMCell, nn.GRUCell),
        "takes a state beside its input; use nn.LSTM or nn.GRU over the whole sequence.",
    ),
    ((nn.EmbeddingBag,), "reads bags of any length; use nn.Embedding, and sum or average what it returns."),
    (
        (nn.ParameterList, nn.ParameterDict),
        "holds parameters that belong to no layer; put each into a module that takes one tensor and returns one, or "
        "freeze them.",
    ),
    ((nn.Bilinear,), "takes two tensors; write it as nn.Linear layers."),
)
_CHECKS: tuple[tuple[type[nn.Module], Callable[[Any], str | None]], ...] = (
    (nn.LSTM, _problem_of_recurrent),
    (nn.GRU, _problem_of_recurrent),
    (nn.Embedding, _problem_of_embedding),
)


def _called(name: str, part: nn.Module) -> str:
    return f"{name!r} ({type(part).__name__})" if name else f"the model itself ({type(part).__name__})"


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)
