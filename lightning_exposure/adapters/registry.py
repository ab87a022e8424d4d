"""The adapters that there are: each says which modules it reads, and they are asked in turn.

An adapter of your own is one class, registered from anywhere before a tree is made. From then on it is chosen wherever
a module is given: by `SecretTree`, by the callbacks and on the command line.

Example:
    >>> from lightning_exposure.adapters import ADAPTERS, StatelessAdapter, step_model
    >>> class Doubling(nn.Module):
    ...     def forward(self, tokens):
    ...         raise NotImplementedError("this one is called in its own way")
    ...     def predict(self, tokens):
    ...         return nn.functional.one_hot(tokens * 2 % 10, 10).double()
    >>> @ADAPTERS.register("doubling")
    ... class DoublingAdapter(StatelessAdapter):
    ...     @classmethod
    ...     def recognise(cls, module, /, *, context=None):
    ...         return cls(module, context=context) if isinstance(module, Doubling) else None
    ...     def at_once(self, tokens):
    ...         return self.module.predict(tokens)
    >>> type(step_model(Doubling())).__name__, ADAPTERS.names()[0]
    ('DoublingAdapter', 'doubling')
    >>> _ = ADAPTERS.unregister("doubling")
"""

from __future__ import annotations

from typing import Protocol

from torch import nn

from lightning_exposure._registry import Registry
from lightning_exposure.adapters.protocol import StepModel


class AdapterKind(Protocol):
    """What is registered: a class of step models with a classmethod `recognise`."""

    def recognise(self, module: nn.Module, /, *, context: int | None) -> StepModel | None:
        """An adapter for a module; None if it is not one for this kind of adapter.

        Args:
            module: What is to be measured, as it was given: perhaps a LightningModule that holds a network.
            context: How many of the last tokens the module is to be given; None: all. Whoever has a state to carry on
                recognises no module that is to have a context.
        """
        ...


ADAPTERS: Registry[AdapterKind] = Registry("adapter")
"""All adapters. Ours have priorities below 0: an adapter of your own comes first unless you say otherwise."""
