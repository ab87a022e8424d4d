"""What becomes of each layer in a private training run: how its gradients are found, or why it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import nn

from lightning_exposure.privacy.clipping._attention import AttentionListener
from lightning_exposure.privacy.clipping._embeddings import EmbeddingListener, is_table
from lightning_exposure.privacy.clipping._layer_hooks import LayerListener, Listener, RecurrentListener
from lightning_exposure.privacy.clipping._layers import rule_for
from lightning_exposure.privacy.clipping.recurrent_layers import KINDS
from lightning_exposure.privacy.clipping.support import layers_of, problems_of


@dataclass(frozen=True)
class Treatment:
    """What becomes of one layer.

    Attributes:
        name: Of the layer in its model.
        kind: The name of its class.
        supported: Whether it can be trained privately.
        how: How the gradients of single examples are found; or why they are not, and what to do about it.
    """

    name: str
    kind: str
    supported: bool
    how: str

    def __str__(self) -> str:
        return f"{self.name or 'the model itself'} ({self.kind}): {'' if self.supported else 'refused: '}{self.how}"


def layer_treatments(module: nn.Module) -> list[Treatment]:
    """What would become of each layer with trainable parameters, and of each that is refused.

    What shows only when a model runs is not known here: a layer that is given something else than the examples of the
    batch in its first dimension, or one of an unknown kind whose single gradients do not add up.

    Example:
        >>> for treatment in layer_treatments(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))):
        ...     print(treatment)
        0 (Linear): pairs of what it reads and what comes back
        1 (BatchNorm1d): refused: its statistics mix the examples of a batch, ...
    """
    problems = {name: (type(part).__name__, why) for name, part, why in problems_of(module)}
    refused = {name: Treatment(name, kind, False, why) for name, (kind, why) in problems.items()}
    layers = [(name, part) for name, part in layers_of(module) if not _within(name, problems)]
    trained = {name: Treatment(name, type(part).__name__, True, _how(part)) for name, part in layers}
    found = refused | trained
    return [found[name] for name, _ in module.named_modules() if name in found]


def listener_of(layer: nn.Module) -> type[Listener]:
    """Who listens to a layer."""
    if isinstance(layer, nn.MultiheadAttention):
        return AttentionListener
    if is_table(layer):
        return EmbeddingListener
    return RecurrentListener if isinstance(layer, KINDS) else LayerListener


def _how(layer: nn.Module) -> str:
    return _HOW.get(listener_of(layer)) or rule_for(layer).how


def _within(name: str, problems: Mapping[str, object]) -> bool:
    return any(name == problem or name.startswith(f"{problem}.") or not problem for problem in problems)


_HOW: Mapping[type[Listener], str] = MappingProxyType(
    {
        AttentionListener: "PyTorch's own code runs, and its linear maps are listened to",
        EmbeddingListener: "the rows that were looked up",
        RecurrentListener: "run by kernels of this library, with equal results",
    }
)
