"""The cost of targets that each have a source of their own: a full pass each, many at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_exposure._checks import whole_number
from lightning_exposure.adapters.encoder_decoder._translators import Translator, target_logits, translator_of
from lightning_exposure.adapters.encoder_decoder.adapter import start_token
from lightning_exposure.adapters.protocol import device_of, evaluating
from lightning_exposure.errors import ArgumentError, ModelError

_LN2 = math.log(2.0)
_LOGITS_AT_ONCE = 2**26
"""How many logits one call may make."""

Translation = tuple[Sequence[int], Sequence[int]]
"""The token ids of a source and those of its target."""


def score_translations(
    model: nn.Module, translations: Sequence[Translation], *, start: int | None = None, batch_size: int = 1024
) -> NDArray[np.float64]:
    """The cost of each target given its source, `-log2 P(target | source)`, in bits, in the order given.

    All tokens of the target count, also those of its prompt: how likely they are may depend on the source, and the
    sources differ. If the ids end with an end token, it counts too.

    Only translations of the same lengths come into one call, so nothing is padded; a source that several of them share
    is encoded once in a call.

    Args:
        model: An encoder-decoder, as for `Seq2SeqAdapter`.
        translations: Token ids of sources and targets, as the model was trained to read and write them, without the
            token that targets begin with.
        start: The token that targets begin with; None: what the model says.
        batch_size: How many translations the model reads at once.

    Raises:
        ArgumentError: A source or a target has no tokens, or `batch_size` is out of range.
        ModelError: The model is no encoder-decoder, or returned NaN.

    Example:
        >>> from lightning_exposure.modules import EncoderDecoder
        >>> model = EncoderDecoder(vocab_size=12, hidden_size=4, embedding_size=4)
        >>> score_translations(model, [([2, 3, 4], [2, 3]), ([5], [6, 7, 8])]).shape
        (2,)
    """
    whole_number("batch_size", batch_size, at_least=1)
    translator = translator_of(model)
    first = start_token(translator, start)
    costs = np.empty(len(translations))
    with evaluating(translator.module):
        for rows in _alike(translations):
            sources, targets = (np.array([translations[row][side] for row in rows], dtype=np.int64) for side in (0, 1))
            for part in _batches(translator, sources, targets, first, batch_size):
                costs[rows[part]] = _costs(translator, sources[part], targets[part], first)
    broken = np.flatnonzero(np.isnan(costs))
    if len(broken):
        raise ModelError(
            f"the model returned NaN for {len(broken)} of {len(translations)} translations, the first at position "
            f"{broken[0]}; a log-perplexity needs finite logits. Look at the training (a loss that became NaN?) before "
            "measuring."
        )
    return costs


def _alike(translations: Sequence[Translation]) -> Iterator[NDArray[np.intp]]:
    """The positions of translations that have the same lengths."""
    lengths = np.array([(len(source), len(target)) for source, target in translations], dtype=np.int64).reshape(-1, 2)
    empty = np.flatnonzero((lengths == 0).any(axis=1))
    if len(empty):
        raise ArgumentError(
            f"translations has a source or a target without tokens, the first at position {empty[0]}; expected at "
            "least one token in each."
        )
    for shape in np.unique(lengths, axis=0):
        yield np.flatnonzero((lengths == shape).all(axis=1))


def _batches(
    translator: Translator, sources: NDArray[np.int64], targets: NDArray[np.int64], first: int, batch_size: int
) -> Iterator[NDArray[np.intp]]:
    """The rows of each call, those with the same source beside each other, and not too many logits in a call."""
    row = _tensor(translator, targets[:1, :1])
    vocabulary = target_logits(
        translator, torch.full_like(row, first), translator.encode(_tensor(translator, sources[:1]))
    ).shape[-1]
    size = max(1, min(batch_size, _LOGITS_AT_ONCE // (targets.shape[1] * vocabulary)))
    order = np.lexsort(sources.T[::-1])
    for begin in range(0, len(order), size):
        yield order[begin : begin + size]


def _costs(
    translator: Translator, sources: NDArray[np.int64], targets: NDArray[np.int64], first: int
) -> NDArray[np.float64]:
    """The bits of targets of one length, given sources of one length."""
    distinct, which = np.unique(sources, axis=0, return_inverse=True)
    encoded = translator.encode(_tensor(translator, distinct))
    if len(distinct) < len(sources) or not np.array_equal(which.reshape(-1), np.arange(len(sources))):
        encoded = translator.take(encoded, _tensor(translator, which.reshape(-1)))
    labels = _tensor(translator, targets)
    inputs = torch.cat([torch.full_like(labels[:, :1], first), labels[:, :-1]], dim=1)
    logits = target_logits(translator, inputs, encoded)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    nats = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    bits: NDArray[np.float64] = nats.double().reshape(labels.shape).sum(dim=1).cpu().numpy() / _LN2
    return bits


def _tensor(translator: Translator, ids: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(ids)).to(device_of(translator.module))
