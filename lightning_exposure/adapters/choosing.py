"""Choosing the adapter for a module: the registered ones are asked in turn."""

from __future__ import annotations

from torch import nn

# Each of these files registers its adapter.
import lightning_exposure.adapters.carried_state
import lightning_exposure.adapters.huggingface.adapter
import lightning_exposure.adapters.stateless  # noqa: F401
from lightning_exposure.adapters._modules_as_found import BY_HAND
from lightning_exposure.adapters.protocol import StepModel
from lightning_exposure.adapters.registry import ADAPTERS
from lightning_exposure.adapters.trial import probe_of, try_on
from lightning_exposure.errors import ModelError
from lightning_exposure.tokenization.spelling import Spelling


def step_model(model: nn.Module | StepModel, *, context: int | None = None) -> StepModel:
    """A model as a `StepModel`: by the first adapter in `ADAPTERS` that recognises it.

    Of ours, a Hugging Face causal LM is read with `HuggingFaceAdapter`, also one that a module holds in an attribute,
    if the module's own forward gives the same logits, or none at all. A module is recurrent if its forward returns
    something made of tensors beside the logits, takes it back, and then reads a string in parts as it reads it at
    once. Any other module is stateless.

    A forward that cannot do without a state gets it from the module's method `init_hidden` (or `init_state`, and the
    like). Whether a recurrent module takes token ids as `(batch, time)` or as `(time, batch)` is found by trying. A
    module without a forward of its own, such as a LightningModule that only trains a network, stands for the one
    network that it holds.

    Args:
        model: A module, or a `StepModel`, which is returned as it is.
        context: How many of the last tokens a module is given, which then is stateless.

    Raises:
        ModelError: No adapter fits; the message says how to choose by hand.
    """
    if isinstance(model, StepModel):
        return model
    if not isinstance(model, nn.Module):
        raise ModelError(f"model is {type(model).__name__}; expected an nn.Module or a StepModel. {BY_HAND}")
    for name in ADAPTERS.names():
        adapter = ADAPTERS.get(name).recognise(model, context=context)
        if adapter is None:
            continue
        if not isinstance(adapter, StepModel):
            raise ModelError(
                f"adapter {name!r} recognised {type(model).__name__} and returned {type(adapter).__name__}; expected a "
                "StepModel, with module, start, step, select, concatenate and bytes_of, or None."
            )
        return adapter
    raise ModelError(
        f"model is {type(model).__name__}, which none of the adapters recognises ({', '.join(ADAPTERS.names())}). "
        f"{BY_HAND}"
    )


class TriedModels:
    """Adapters that were chosen and models that were tried, so that neither is done twice.

    Choosing an adapter runs the model, for a Hugging Face model several times, and so does trying it on the secrets of
    a format. Neither depends on the weights. Whoever makes several trees for one module, such as the callbacks of one
    Trainer, hands all of them the same object, and drops it after the fit: it keeps the modules alive.

    Example:
        >>> from lightning_exposure import SecretFormat, SecretTree
        >>> from lightning_exposure.tokenization import CharTokenizer
        >>> model, letters = nn.Embedding(14, 14), CharTokenizer.from_text("pin 0123456789")
        >>> tried = TriedModels()
        >>> pin, code = (SecretTree(model, SecretFormat(f), letters, tried=tried) for f in ("pin ##", "pin ####"))
        >>> pin.model is code.model
        True
    """

    def __init__(self) -> None:
        self._chosen: dict[tuple[int, int | None], tuple[nn.Module, StepModel]] = {}
        self._tried: dict[tuple[object, ...], tuple[StepModel, ModelError | None]] = {}

    def step_model(self, model: nn.Module | StepModel, *, context: int | None = None) -> StepModel:
        """As the function of this name; the same adapter for the same module and context."""
        if isinstance(model, StepModel) or not isinstance(model, nn.Module):
            return step_model(model, context=context)
        key = (id(model), context)
        if key not in self._chosen:
            self._chosen[key] = (model, step_model(model, context=context))
        return self._chosen[key][1]

    def try_on(self, model: StepModel, spelling: Spelling) -> ModelError | None:
        """As the function of this name; once for each model and each set of texts that it is tried on."""
        probe = probe_of(spelling)
        key = (id(model), tuple(probe.root), probe.paths.tobytes(), probe.known, probe.alphabet.tobytes())
        if key not in self._tried:
            self._tried[key] = (model, try_on(model, probe))
        return self._tried[key][1]
