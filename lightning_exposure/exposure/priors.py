"""Priors from what people have: another model, a checkpoint, a model without its adapters, the weights of before.

All of them end in a `SecretTree` of the reference, which `measure_exposure(tree, secrets, prior=...)` takes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_exposure.adapters.choosing import step_model
from lightning_exposure.adapters.protocol import StepModel
from lightning_exposure.adapters.states import ModelState
from lightning_exposure.errors import ArgumentError, ManifestError
from lightning_exposure.exposure._prior import ReferencePrior
from lightning_exposure.tree.secret_tree import SecretTree
from lightning_exposure.walks import DEFAULT_MEMORY

Weights = Mapping[str, Tensor]
"""A state dict."""


def prior_from_model(model: nn.Module | StepModel, tree: SecretTree, *, context: int | None = None) -> SecretTree:
    """The prior that a reference model gives to the secrets of a tree.

    Args:
        model: A model that has not seen the secrets: trained on other data, or before it was fine-tuned.
        tree: What is measured; the prior gets its format and its tokenizer.
        context: For a model without a state: how many of the last tokens it is given; None: all.

    Example:
        >>> from lightning_exposure import CharTokenizer, SecretFormat, measure_exposure
        >>> _ = torch.manual_seed(0)
        >>> model, reference = (nn.Sequential(nn.Embedding(14, 8), nn.Linear(8, 14)) for _ in range(2))
        >>> tree = SecretTree(model, SecretFormat("pin ###"), CharTokenizer.from_text("pin 0123456789"))
        >>> estimate, = measure_exposure(tree, ["pin 123"], prior=prior_from_model(reference, tree))
        >>> estimate.method, 0 <= estimate.bits <= estimate.prior_bits
        ('exact', True)
    """
    return SecretTree(model, tree.format, tree.tokenizer, context=context, batch_size=tree.batch_size)


def prior_of_tree(reference: SecretTree, tree: SecretTree) -> SecretTree | OwnTokenizerPrior:
    """The prior that a reference with a tokenizer of its own gives to the secrets of a tree.

    Args:
        reference: The tree of the same format, with the reference model and its tokenizer.
        tree: What is measured.

    Returns:
        The reference itself, if both spell the secrets as the same tokens, so that they can be read in step; else what
        it says of whole texts.
    """
    return reference if _spelt_alike(tree, reference) else OwnTokenizerPrior(reference)


def _spelt_alike(tree: SecretTree, reference: SecretTree) -> bool:
    """Whether two tokenizers spell the secrets of a format as the same tokens."""
    if tree.spelling.vocab_size != reference.spelling.vocab_size:
        return False
    if list(tree.spelling.root) != list(reference.spelling.root):
        return False
    texts = tree.format.sample(min(16, tree.format.size), 0)
    return bool(np.array_equal(tree.paths(texts), reference.paths(texts)))


def weights_on_cpu(module: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights and buffers of a module, kept on the CPU: what it was before it is trained any further."""
    return {name: value.detach().to("cpu", copy=True) for name, value in module.state_dict().items()}


def weights_of_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """The weights in a checkpoint of Lightning, or in a file with nothing but a state dict.

    Raises:
        ManifestError: The file holds no weights, or more than weights can be read from it safely.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ManifestError(
            f"{path}: not a checkpoint that can be read without running code from it ({_in_short(error)}). "
            "Load the module yourself, and use it as a model."
        ) from error
    weights = content.get("state_dict", content) if isinstance(content, dict) else None
    if not weights or not all(isinstance(value, Tensor) for value in weights.values()):
        raise ManifestError(f"{path}: holds no weights; expected a checkpoint of Lightning, or a state dict.")
    return dict(weights)


def with_weights(module: nn.Module, weights: Weights) -> nn.Module:
    """A copy of a module with other weights, on the same device; the module itself is not touched.

    Args:
        module: What is copied.
        weights: As `weights_on_cpu` or `weights_of_checkpoint` give them.

    Raises:
        ArgumentError: They do not fit the module.
    """
    other = deepcopy(module)
    try:
        other.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise ArgumentError(
            f"weights do not fit {type(module).__name__}: {_in_short(error)}. Expected those of a module of the "
            "same kind and size."
        ) from error
    other.zero_grad(set_to_none=True)
    return other.requires_grad_(False).eval()


def without_adapters(model: nn.Module, *, context: int | None = None) -> StepModel:
    """A model as it is with its adapters switched off (PEFT): the pretrained one, without a second copy of it.

    The adapters are off only while the reference reads, so that it can read in step with the model itself.

    Args:
        model: A module that is, or holds, models of PEFT.
        context: For a model without a state: how many of the last tokens it is given; None: all.

    Raises:
        ArgumentError: There are no adapters in it.
    """
    if not _with_adapters(model):
        raise ArgumentError(
            f"model is {type(model).__name__}, in which nothing has disable_adapter(); expected a model of PEFT. Give "
            "the model that was fine-tuned as prior instead, as prior_from_model(pretrained, tree)."
        )
    return _WithoutAdapters(step_model(model, context=context))


def _in_short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


@contextmanager
def adapters_off(module: nn.Module) -> Iterator[None]:
    """Switch the adapters in a module off; afterwards they are on, and what is trained is what was trained before."""
    trained = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    try:
        with ExitStack() as stack:
            for part in _with_adapters(module):
                stack.enter_context(part.disable_adapter())
            yield
    finally:
        for parameter, requires_grad in trained:  # PEFT switches gradients with its adapters
            parameter.requires_grad_(requires_grad)


def _with_adapters(module: nn.Module) -> list[Any]:
    """The outermost parts of a module whose adapters can be switched off."""
    if callable(getattr(module, "disable_adapter", None)):
        return [module]
    return [part for child in module.children() for part in _with_adapters(child)]


class _WithoutAdapters:
    """A `StepModel` that reads with the adapters off."""

    def __init__(self, model: StepModel) -> None:
        self._model = model

    @property
    def module(self) -> nn.Module:
        return self._model.module

    def start(self, tokens: Sequence[int], /) -> tuple[Tensor, ModelState]:
        with adapters_off(self.module):
            return self._model.start(tokens)

    def step(self, state: ModelState, tokens: Tensor, /) -> tuple[Tensor, ModelState]:
        with adapters_off(self.module):
            return self._model.step(state, tokens)

    def select(self, state: ModelState, rows: Tensor, /) -> ModelState:
        return self._model.select(state, rows)

    def concatenate(self, states: Sequence[ModelState], /) -> ModelState:
        return self._model.concatenate(states)

    def bytes_of(self, state: ModelState, /) -> int:
        return self._model.bytes_of(state)

    def __getattr__(self, name: str) -> Any:
        # What an adapter may tell besides, such as `row_bytes` and `rereads`.
        if name == "_model":
            raise AttributeError(name)
        return getattr(self._model, name)


class OwnTokenizerPrior:
    """The prior of a reference model that spells the secrets with another tokenizer than the model that is measured.

    Args:
        reference: A tree of the format with the reference model and its own tokenizer.
    """

    def __init__(self, reference: SecretTree) -> None:
        self._reference = reference
        self._prior = ReferencePrior(reference, reference)

    def log2_probabilities(self, texts: Sequence[str], /) -> NDArray[np.float64]:
        """log2 of the probability of each complete text, renormalised among the texts of the format."""
        return self._prior.of_paths(self._reference.paths(texts), DEFAULT_MEMORY)
