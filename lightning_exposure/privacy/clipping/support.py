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
from lightning_exposure.privacy.clipping.recurrent_layers import KINDS


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
    problems = [f"- {_called(name, part)}: {problem}" for name, part, problem in problems_of(module)]
    if not problems and not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelError("The model has no trainable parameters: nothing to train, privately or not.")
    if problems:
        raise ModelError("\n".join(["The model cannot be trained privately as it is:", *problems]))


def problems_of(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """The names and modules of what cannot be trained privately, and what to do about each."""
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
    names = [name for name, value in own_parameters(part).items() if gradient_is_hooked(value)]
    if names:
        return (
            f"has hooks on the gradient of {_listed(names)}, which would never be called: the gradients of single "
            "examples are found in another way. Remove them (register_hook, register_post_accumulate_grad_hook)."
        )
    if has_old_backward_hook(part):
        return "has a hook by register_backward_hook, which sees other gradients; use register_full_backward_hook."
    return None


def own_parameters(part: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are a module's own, not those of its children, by all their names.

    Attention uses those of its child itself.
    """
    return dict(part.named_parameters(recurse=isinstance(part, nn.MultiheadAttention), remove_duplicate=False))


def own_trainable(part: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable ones of them."""
    return {name: value for name, value in own_parameters(part).items() if value.requires_grad}


def layers_of(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The names and modules of layers to listen to: attention, and leaves with trainable parameters of their own."""
    within = {id(part.out_proj) for part in module.modules() if isinstance(part, nn.MultiheadAttention)}
    for name, part in module.named_modules():
        leaf = id(part) not in within and not any(True for _ in part.children())
        if own_trainable(part) and (leaf or isinstance(part, nn.MultiheadAttention)):
            yield name, part


def time_first(module: nn.Module) -> set[int]:
    """The ids of the layers whose inputs have the time in the first dimension and the examples in the second.

    These are recurrent layers and attention with `batch_first=False`, which is their default, and the parts of
    PyTorch's own Transformers of such attention.

    Example:
        >>> module = nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2), nn.TransformerEncoderLayer(2, 1))
        >>> len(time_first(module))
        9
    """
    found: set[int] = set()
    for part in module.modules():
        if not getattr(part, "batch_first", True):
            found.add(id(part))
        if _is_time_first(part):
            found |= {id(inner) for inner in part.children()}
        if isinstance(part, nn.TransformerEncoder | nn.TransformerDecoder) and _is_time_first(part.layers[0]):
            found.add(id(part.norm))
    return found


def _is_time_first(part: Any) -> bool:
    """Whether it is a layer of one of PyTorch's Transformers, with time first."""
    # Another forward may turn what it reads.
    kinds = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    same = any(isinstance(part, kind) and type(part).forward is kind.forward for kind in kinds)
    return same and not part.self_attn.batch_first


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
    kind = next(kind for kind in KINDS if isinstance(part, kind))
    if type(part).forward is not kind.forward or "forward" in vars(part):
        return f"is an nn.{kind.__name__} with a forward of its own; use nn.{kind.__name__} itself, as a part."
    return None


def _problem_of_attention(part: Any) -> str | None:
    if type(part).forward is not nn.MultiheadAttention.forward or "forward" in vars(part):
        return "is an nn.MultiheadAttention with a forward of its own; use nn.MultiheadAttention itself, as a part."
    if not isinstance(part.out_proj, nn.Linear) or any(True for _ in part.out_proj.children()):
        return (
            "has something else than a linear layer as 'out_proj', of which it would only use the weight; adapters are "
            "for attention that is made of nn.Linear layers."
        )
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
        (nn.RNNCell, nn.LSTMCell, nn.GRUCell),
        "takes a state beside its input; use nn.LSTM, nn.GRU or nn.RNN over the whole sequence.",
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
    (nn.RNNBase, _problem_of_recurrent),
    (nn.MultiheadAttention, _problem_of_attention),
    (nn.Embedding, _problem_of_embedding),
)


def _called(name: str, part: nn.Module) -> str:
    return f"{name!r} ({type(part).__name__})" if name else f"the model itself ({type(part).__name__})"


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)
