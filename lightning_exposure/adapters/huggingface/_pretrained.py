"""Hugging Face models: recognised without importing transformers, and all called in the same way.

Whoever has a Hugging Face model has imported transformers already, so its classes are recognised by their names.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lightning_exposure.adapters._differences import SameLogits, eps_of
from lightning_exposure.adapters.protocol import device_of, evaluating, logits_of
from lightning_exposure.errors import ArgumentError, ModelError


def is_pretrained(module: object) -> bool:
    """Whether a module is a Hugging Face model, or one with PEFT's adapters around it."""
    return _descends(module, "transformers", "PreTrainedModel") or is_peft(module)


def is_peft(module: object) -> bool:
    """Whether a module is PEFT's shell around a model."""
    return _descends(module, "peft", "PeftModel") or _descends(module, "peft", "PeftMixedModel")


def refuse_encoder_decoder(module: nn.Module) -> None:
    """Raise if a Hugging Face model reads a source first.

    Raises:
        ModelError: It does; says what to use instead.
    """
    model = underlying(module)
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ModelError(
            f"{type(model).__name__} is an encoder-decoder: what it writes depends on a source. Use "
            "Seq2SeqAdapter(model, source) from lightning_exposure.adapters; callbacks take it as "
            "model=lambda module: Seq2SeqAdapter(module, source)."
        )


def language_models_in(module: nn.Module) -> dict[str, nn.Module]:
    """The Hugging Face models with a language-model head that a module holds, by the names of its attributes.

    Only the outermost ones count: a causal LM holds its own headless model, and PEFT's shell the model it adapts.
    The name of the module itself is "".
    """
    found: dict[str, nn.Module] = {}
    for name, part in module.named_modules():
        if is_pretrained(part) and _writes_text(part):
            found[name] = part
    inner = {id(part) for outer in found.values() for part in outer.modules() if part is not outer}
    return {name: part for name, part in found.items() if id(part) not in inner}


def language_model_of(module: nn.Module) -> nn.Module | None:
    """The Hugging Face causal LM that a module is or holds; None if there is none, or the module does more than that.

    Raises:
        ModelError: There are several and nothing says which; or it is an encoder-decoder, which needs a source.
    """
    found = language_models_in(module)
    if not found:
        return None
    if "" in found:
        refuse_encoder_decoder(module)
        return module
    own = _own_logits(module)
    if own is not None:  # what the module's forward gives is what counts: the LM it holds must give the same
        found = {name: part for name, part in found.items() if _gives(part, own)}
        if not found:
            return None
    if len(found) > 1:
        names = ", ".join(f"{name} ({type(part).__name__})" for name, part in found.items())
        first = next(iter(found))
        raise ModelError(
            f"{type(module).__name__} holds {len(found)} language models, {names}, and nothing says which one is to be "
            f"measured. Name it: SecretTree(module.{first}, format, tokenizer), or in a callback "
            f"model=lambda module: module.{first}."
        )
    (chosen,) = found.values()
    refuse_encoder_decoder(chosen)
    return chosen


def _own_logits(module: nn.Module) -> Tensor | None:
    """What a module's own forward gives for two rows of tokens; None if it takes or returns something else."""
    tokens = torch.tensor([[0, 1, 0], [1, 0, 1]], device=device_of(module))
    try:
        with evaluating(module):
            return logits_of(module(tokens), *tokens.shape)
    except Exception:  # a forward for batches, with labels, that logs: it is not asked again
        return None


def _gives(part: nn.Module, logits: Tensor) -> bool:
    """Whether an LM gives these logits."""
    own = _own_logits(part)
    return own is not None and SameLogits(eps_of(part, own))(own, logits)


def _writes_text(module: nn.Module) -> bool:
    """Whether a Hugging Face model says that it can continue a text, so that it has a head for it."""
    can_generate: Any = getattr(underlying(module), "can_generate", None)
    return bool(can_generate()) if callable(can_generate) else True


def underlying(module: nn.Module) -> nn.Module:
    """The model inside PEFT's shell; any other module is returned as it is."""
    if not is_peft(module):
        return module
    shell: Any = module
    inner: nn.Module = shell.get_base_model()
    return inner


def _descends(module: object, package: str, name: str) -> bool:
    return any(base.__name__ == name and base.__module__.split(".")[0] == package for base in type(module).__mro__)


class PretrainedCall:
    """Calls a Hugging Face causal LM with what its forward accepts, and takes the logits out.

    Args:
        module: The model, or PEFT's shell around it.
        adapters: Whether its adapters are on; False: the base model is read.

    Raises:
        ArgumentError: Adapters are to be off and there are none.
        ModelError: Adapters are to be off and are merged into the weights.
    """

    def __init__(self, module: nn.Module, *, adapters: bool = True) -> None:
        self.module = module
        self._model: Any = underlying(module)
        self._adapters = adapters
        parameters = inspect.signature(self._model.forward).parameters.values()
        self._accepts_anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        self._accepts = {p.name for p in parameters}
        config: Any = self._model.config
        self.config: Any = config.get_text_config() if hasattr(config, "get_text_config") else config
        limit = getattr(self.config, "max_position_embeddings", None)
        if _stretches_positions(self.config):
            limit = None
        self.positions: int | None = limit if isinstance(limit, int) and limit > 0 else None
        if not adapters:
            _refuse_without_adapters(module)

    @property
    def name(self) -> str:
        """Of the model's class."""
        return type(self._model).__name__

    def accepts(self, argument: str) -> bool:
        """Whether forward has an argument of this name."""
        return argument in self._accepts

    def __call__(self, tokens: Tensor, **options: Any) -> Any:
        """The model's output; options that its forward does not know, and those that are None, are left out."""
        given = {name: value for name, value in options.items() if name in self._accepts and value is not None}
        if "return_dict" in self._accepts or self._accepts_anything:
            given["return_dict"] = True
        with nullcontext() if self._adapters else _adapters_off(self.module):
            return self.module(tokens, **given)

    def last_logits(self, tokens: Tensor, *, last: int = 1, **options: Any) -> tuple[Tensor, Any]:
        """The logits after each of the last tokens `(batch, last, vocabulary)`, and the whole output."""
        output = self(tokens, logits_to_keep=last, **options)
        time = last if self.accepts("logits_to_keep") else tokens.shape[1]
        return logits_of(output, len(tokens), time)[:, -last:], output

    def logits_without_cache(self, tokens: Tensor, last: int) -> Tensor:
        """The logits after each of the last tokens of some rows `(batch, last, vocabulary)`."""
        logits, _ = self.last_logits(tokens, last=last, use_cache=False, attention_mask=torch.ones_like(tokens))
        return logits

    def at_once(self, tokens: Sequence[int], last: int) -> Tensor:
        """The logits after each of the last tokens of one row, with no cache at all."""
        return self.logits_without_cache(self.ids(tokens), last)[0]

    def ids(self, tokens: Sequence[int]) -> Tensor:
        """A prompt as a batch of one row.

        Raises:
            ModelError: It is longer than the model can read, or has tokens that the model does not know.
        """
        self.refuse_beyond_end(len(tokens))
        embedding = self._model.get_input_embeddings()
        known = getattr(embedding, "num_embeddings", None)
        if known is not None and max(tokens, default=0) >= known:
            raise ModelError(
                f"the prompt has the token id {max(tokens)}, and {self.name} knows {known} tokens. Model and tokenizer "
                "must belong together: after adding tokens call model.resize_token_embeddings(len(tokenizer))."
            )
        return torch.tensor([list(tokens)], dtype=torch.long, device=device_of(self.module))

    def refuse_beyond_end(self, length: int) -> None:
        """Raise if so many tokens are more than the model has positions for.

        Raises:
            ModelError: They are.
        """
        if self.positions is not None and length > self.positions:
            raise ModelError(
                f"prompt and secret together have at least {length} tokens, and {self.name} has positions for "
                f"{self.positions} (max_position_embeddings in its config). Shorten the text before the first blank."
            )


def _stretches_positions(config: Any) -> bool:
    """Whether rotary embeddings adapt to texts of any length, so that what the config calls the end is none."""
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else None
    return kind == "dynamic"


def _refuse_without_adapters(module: nn.Module) -> None:
    name = type(module).__name__
    if not is_peft(module):
        raise ArgumentError(
            f"adapters is False, and {name} is no PEFT model; expected one, whose adapters can be switched off. Leave "
            "adapters out to measure the model as it is."
        )
    if any(getattr(part, "merged", False) is True for part in module.modules()):
        raise ModelError(
            f"adapters is False, and the adapters of {name} are merged into its weights; to switch them off the "
            "weights would have to change. Call model.unmerge_adapter() before measuring."
        )


@contextmanager
def _adapters_off(module: nn.Module) -> Iterator[None]:
    """The base model; afterwards the shell has the attributes, and every parameter asks for gradients, as before."""
    shell: Any = module
    attributes = set(vars(module))
    asked = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    try:
        with shell.disable_adapter():
            yield
    finally:
        # PEFT switches gradients with the adapters, and back on for all that are active, also where they were off.
        for parameter, requires_grad in asked:
            parameter.requires_grad_(requires_grad)
        for name in vars(module).keys() - attributes:  # a forward of its own, where adapters are tokens before the text
            del vars(module)[name]
