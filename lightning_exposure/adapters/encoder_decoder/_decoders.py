"""Stepping with a decoder, given a source: by its caches, by its own state, or by reading the target again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from lightning_exposure.adapters._reading_in_parts import ReadsOn, difference_in_parts
from lightning_exposure.adapters.carried_state import RecurrentAdapter
from lightning_exposure.adapters.encoder_decoder._decoder_caches import CachedDecoder
from lightning_exposure.adapters.encoder_decoder._translators import HuggingFaceTranslator, Translator, target_logits
from lightning_exposure.adapters.protocol import StepModel, device_of, evaluating
from lightning_exposure.adapters.stateless import StatelessAdapter
from lightning_exposure.adapters.states import ModelState
from lightning_exposure.errors import ExposureError, ModelError

_TROUBLE = (
    ExposureError, ImportError, RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError,
)  # fmt: skip
"""What a decoder may raise that cannot go on from a state."""


class GivenSource(StepModel, Protocol):
    """A `StepModel` that is told what the encoder made of the source."""

    encoded: ModelState


class GoesOn(GivenSource, ReadsOn, Protocol):
    """One that goes on from a state, or should."""


class _ConditionedDecoder(nn.Module):
    """A decoder with its source: token ids to logits, or to logits and a state."""

    def __init__(self, translator: Translator, encoded: ModelState) -> None:
        super().__init__()
        self.module = translator.module
        self.translator = translator
        self.encoded = encoded

    def forward(self, tokens: Tensor, state: Any = None) -> Any:
        return self.translator.decode(tokens, self.translator.expand(self.encoded, len(tokens)), state)


class _WithSource:
    """The source of an adapter is that of its module."""

    _module: _ConditionedDecoder

    @property
    def encoded(self) -> ModelState:
        return self._module.encoded

    @encoded.setter
    def encoded(self, encoded: ModelState) -> None:
        self._module.encoded = encoded


class _RecurrentDecoder(_WithSource, RecurrentAdapter):
    """Goes on from the state that `decode` returns."""

    _module: _ConditionedDecoder


class _RereadingDecoder(_WithSource, StatelessAdapter):
    """Reads the target from its beginning each time."""

    _module: _ConditionedDecoder


def rereading_decoder(translator: Translator, encoded: ModelState) -> GivenSource:
    """Reads the target from its beginning each time: always right, and slow."""
    return _RereadingDecoder(_ConditionedDecoder(translator, encoded))


def decoder_of(translator: Translator, source: list[int], start: int) -> GivenSource:
    """What steps with a decoder: the fastest that reads as the decoder itself does when it reads all at once.

    Raises:
        ModelError: The model fails on the source, or on a target that begins with the start token.
    """
    with evaluating(translator.module):
        encoded = encode(translator, source)
        try:
            paths = _targets(translator, encoded, start)
        except Exception as error:
            raise ModelError(
                f"{type(translator.module).__name__} failed on a source of {len(source)} tokens and a target that "
                f"begins with token {start}: {error!r}. Are these ids within its vocabularies, and the source not too "
                "long?"
            ) from error
        try:
            decoder: GoesOn
            if isinstance(translator, HuggingFaceTranslator):
                decoder = CachedDecoder(translator, encoded)
            else:
                decoder = _RecurrentDecoder(_ConditionedDecoder(translator, encoded), state_argument="state")
        except _TROUBLE:
            return rereading_decoder(translator, encoded)
        if goes_on(decoder, translator, [start], paths):
            return decoder
        return rereading_decoder(translator, encoded)


def encode(translator: Translator, source: list[int]) -> ModelState:
    """What the encoder makes of one source."""
    return translator.encode(torch.tensor([source], device=device_of(translator.module)))


def goes_on(
    decoder: GivenSource, translator: Translator, prompt: Sequence[int], paths: Sequence[Sequence[int]]
) -> bool:
    """Whether steps give what reading at once gives.

    Args:
        decoder: What steps, from a state of its own.
        translator: What reads at once.
        prompt: What targets begin with.
        paths: Two ways to go on.
    """

    def at_once(tokens: Tensor, last: int) -> Tensor:
        return target_logits(translator, tokens, translator.expand(decoder.encoded, len(tokens)))

    try:
        cached = isinstance(decoder, CachedDecoder)
        return difference_in_parts(cast(GoesOn, decoder), at_once, prompt, paths, lengths=cached) is None
    except _TROUBLE:
        return False


def _targets(translator: Translator, encoded: ModelState, start: int) -> list[list[int]]:
    """Two targets of five tokens each; they are read once, to see that they can be."""
    begin = torch.full((2, 1), start, device=device_of(translator.module))
    vocabulary = target_logits(translator, begin, translator.expand(encoded, 2)).shape[-1]
    places = torch.arange(1, 6, device=begin.device)
    # Different tokens among the first, which every vocabulary has; but not the very first, where padding often is.
    tokens = places**2 + torch.arange(2, device=begin.device)[:, None] * places
    tokens = 3 + tokens % 8 if vocabulary > 11 else tokens % vocabulary
    target_logits(translator, torch.cat([begin, tokens], dim=1), translator.expand(encoded, 2))
    paths: list[list[int]] = tokens.tolist()
    return paths
