"""How an encoder-decoder reads: the source once, then targets of which each token follows those before it.

Two kinds of modules are known: those with `encode` and `decode` methods, such as `EncoderDecoder` of this library, and
the encoder-decoders of Hugging Face (T5, BART, Marian and their relatives).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lightning_exposure.adapters.protocol import device_of, evaluating, logits_of
from lightning_exposure.adapters.states import ModelState, batch_dimensions, holds_tensors, map_tensors, select_rows
from lightning_exposure.errors import ModelError

_REMEDY = (
    "Expected a Hugging Face encoder-decoder, or a module with encode(source) -> encoded and decode(tokens, encoded, "
    "state=None) -> (logits, state) or logits, what encode returns made of tensors with one row per source; or a "
    "module that holds one such module in an attribute."
)


class Translator(Protocol):
    """An encoder-decoder, whoever made it."""

    @property
    def module(self) -> nn.Module:
        """The module that does the work."""
        ...

    @property
    def start_id(self) -> int | None:
        """The token that targets begin with, if the module says which."""
        ...

    def encode(self, sources: Tensor, /) -> ModelState:
        """What the encoder makes of sources `(batch, time)` of one length, one row for each."""
        ...

    def decode(self, tokens: Tensor, encoded: ModelState, state: ModelState | None = None, /) -> Any:
        """What the decoder returns for tokens `(batch, time)`, each row with a source of its own."""
        ...

    def take(self, encoded: ModelState, rows: Tensor, /) -> ModelState:
        """The encoded sources of some rows."""
        ...

    def expand(self, encoded: ModelState, count: int, /) -> ModelState:
        """One encoded source for each of many rows, without copying it."""
        ...


def target_logits(translator: Translator, tokens: Tensor, encoded: ModelState) -> Tensor:
    """The logits `(batch, time, vocabulary)` after each of the tokens `(batch, time)`."""
    return logits_of(translator.decode(tokens, encoded), *tokens.shape)


class PlainTranslator:
    """Reads with a module that has `encode(source)` and `decode(tokens, encoded, state=None)`.

    Args:
        module: The model.

    Raises:
        ModelError: `encode` fails, or its result has not one row per source.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        trial = torch.zeros(3, 4, dtype=torch.long, device=device_of(module))
        name = type(module).__name__
        try:
            with evaluating(module):
                of_two, of_three = self.encode(trial[:2]), self.encode(trial)
        except Exception as error:
            raise ModelError(f"encode of {name} failed on token ids of shape (2, 4): {error!r}. {_REMEDY}") from error
        if not (holds_tensors(of_two) and holds_tensors(of_three)):
            raise ModelError(f"encode of {name} returned {type(of_two).__name__}. {_REMEDY}")
        self._dimensions = batch_dimensions(of_two, of_three)
        self._refuse_unclear(of_two)

    @property
    def start_id(self) -> int | None:
        """The module's `start_id`."""
        found = getattr(self.module, "start_id", None)
        return None if found is None else int(found)

    def encode(self, sources: Tensor, /) -> ModelState:
        """Call `encode`."""
        return self.module.encode(sources)  # type: ignore[operator]

    def decode(self, tokens: Tensor, encoded: ModelState, state: ModelState | None = None, /) -> Any:
        """Call `decode`, with a state if there is one."""
        more = () if state is None else (state,)
        return self.module.decode(tokens, encoded, *more)  # type: ignore[operator]

    def take(self, encoded: ModelState, rows: Tensor, /) -> ModelState:
        """The encoded sources of some rows."""
        return select_rows(encoded, self._dimensions, rows)

    def expand(self, encoded: ModelState, count: int, /) -> ModelState:
        """Views of one encoded source."""

        def widen(tensor: Tensor, dimension: int) -> Tensor:
            return tensor.expand([count if d == dimension else n for d, n in enumerate(tensor.shape)])

        return map_tensors(widen, encoded, self._dimensions)

    def _refuse_unclear(self, encoded: ModelState) -> None:
        def check(tensor: Tensor, dimension: int) -> None:
            if dimension < 0:
                raise ModelError(
                    f"encode of {type(self.module).__name__} returned a tensor of shape {tuple(tensor.shape)} for 2 "
                    f"sources, in which no single dimension follows the number of sources. {_REMEDY}"
                )

        map_tensors(check, encoded, self._dimensions)


class HuggingFaceTranslator:
    """Reads with an encoder-decoder of Hugging Face; an encoded source is the encoder's last hidden state.

    Nothing is ever padded, so no attention mask is needed.

    Args:
        module: The model.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._kind: Any = None  # of what the encoder returns, which the decoder asks for

    @property
    def start_id(self) -> int | None:
        """`decoder_start_token_id` of the model's configuration."""
        found = getattr(self.module.config, "decoder_start_token_id", None)
        return None if found is None else int(found)

    def encode(self, sources: Tensor, /) -> Tensor:
        """The encoder's last hidden state `(batch, time, hidden)`."""
        encoder: Any = self.module.get_encoder()  # type: ignore[operator]
        output = encoder(input_ids=sources, return_dict=True)
        self._kind = type(output)
        hidden: Tensor = output.last_hidden_state
        return hidden

    def decode(self, tokens: Tensor, encoded: Tensor, state: Any = None, /) -> Any:
        """Call forward without its encoder; with a cache as the state, the cache is filled further."""
        return self.module(
            encoder_outputs=self._kind(last_hidden_state=encoded),
            decoder_input_ids=tokens,
            past_key_values=state,
            use_cache=state is not None,
            return_dict=True,
        )

    def take(self, encoded: Tensor, rows: Tensor, /) -> Tensor:
        """The encoded sources of some rows."""
        return encoded.index_select(0, rows)

    def expand(self, encoded: Tensor, count: int, /) -> Tensor:
        """Views of one encoded source."""
        return encoded.expand(count, -1, -1)


def translator_of(model: nn.Module) -> Translator:
    """What reads with a module: the module itself, or the one encoder-decoder that it holds.

    Raises:
        ModelError: There is none, or there are several.
    """
    if isinstance(model, nn.Module):
        if _is_known(model):
            return _translator(model)
        held = {name: part for name, part in model.named_children() if _is_known(part)}
        if len(held) == 1:
            return _translator(next(iter(held.values())))
        if held:
            raise ModelError(
                f"{type(model).__name__} holds {len(held)} encoder-decoders ({', '.join(held)}); which is meant? Give "
                "the one itself."
            )
    raise ModelError(f"model is {type(model).__name__}, which is no encoder-decoder. {_REMEDY}")


def _translator(module: nn.Module) -> Translator:
    return HuggingFaceTranslator(module) if _is_hugging_face(module) else PlainTranslator(module)


def _is_known(module: nn.Module) -> bool:
    methods = (getattr(module, name, None) for name in ("encode", "decode"))
    return _is_hugging_face(module) or all(map(callable, methods))


def _is_hugging_face(module: nn.Module) -> bool:
    """An encoder-decoder of `transformers`, or one inside a PEFT wrapper; both have these names."""
    config = getattr(module, "config", None)
    return bool(getattr(config, "is_encoder_decoder", False)) and callable(getattr(module, "get_encoder", None))
