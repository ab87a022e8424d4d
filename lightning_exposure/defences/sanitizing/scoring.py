"""`TextScorer`: what whole samples cost a model, in bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_exposure._checks import whole_number
from lightning_exposure.adapters.choosing import step_model
from lightning_exposure.adapters.protocol import StepModel, device_of, evaluating
from lightning_exposure.errors import ModelError
from lightning_exposure.tokenization.huggingface.tokenizer import as_tokenizer

_LN2 = math.log(2.0)
_LOGITS_AT_ONCE = 2**24
"""How many logits one call may make."""


class TextScorer:
    r"""The log-perplexity of whole texts, or rows of token ids, in bits: every token but the first counts.

    Rows of different lengths never come into one call, so nothing is padded. What is longer than the model can read is
    read in windows that overlap by half: each token is scored once, with at least half a window before it.

    Args:
        model: Any `nn.Module` with logits, Hugging Face included, or a `StepModel`.
        tokenizer: Ours, one of Hugging Face, or any with encode, decode and vocab_size; None: samples are token ids.
        before: What stands before every text in the training data, such as a line break. It costs nothing if it is one
            token.
        context: The length of the windows; None: what the model can read, if it says so.

    Raises:
        ModelError: It is no language model.

    Example:
        >>> from lightning_exposure import CharTokenizer
        >>> letters = CharTokenizer.from_text("\nabc")
        >>> uniform = nn.Embedding(4, 4, _weight=torch.zeros(4, 4))
        >>> TextScorer(uniform, letters, before="\n")(["ab", "", "abc"]).round(4).tolist()
        [4.0, 0.0, 6.0]
    """

    def __init__(
        self, model: nn.Module | StepModel, tokenizer: Any = None, *, before: str = "", context: int | None = None
    ) -> None:
        self.model = step_model(model)
        self.tokenizer = None if tokenizer is None else as_tokenizer(tokenizer)
        self.before = before
        longest = getattr(self.model, "longest", None) if context is None else whole_number("context", context)
        self._window = None if longest is None else max(2, int(longest))

    def __call__(self, samples: Sequence[Any]) -> NDArray[np.float64]:
        """What each sample costs.

        Raises:
            ModelError: The model returned NaN.
        """
        pieces: list[tuple[int, list[int], int]] = []  # the sample, tokens, and how many of them are only read
        for number, ids in enumerate(map(self._ids, samples)):
            pieces += [(number, part, known) for part, known in _windows(ids, self._window)]
        costs = np.zeros(len(samples))
        by_shape: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}
        for number, part, known in pieces:
            by_shape.setdefault((len(part), known), []).append((number, part))
        with evaluating(self.model.module):
            for (_, known), rows in sorted(by_shape.items()):
                tokens = np.array([part for _, part in rows], dtype=np.int64)
                np.add.at(costs, [number for number, _ in rows], self._costs(tokens, known))
        return costs

    def _ids(self, sample: Any) -> list[int]:
        if self.tokenizer is not None:
            return list(self.tokenizer.encode(self.before + sample))
        return [int(token) for token in sample]

    def _costs(self, ids: NDArray[np.int64], known: int) -> NDArray[np.float64]:
        """What rows of one length cost, without their first tokens."""
        tokens = torch.from_numpy(ids).to(device_of(self.model.module))
        logits = self._logits(tokens[:1])  # tells how large the vocabulary is
        rows = max(1, _LOGITS_AT_ONCE // (tokens.shape[1] * logits.shape[-1]))
        parts = [_bits(self._logits(part), part, known) for part in torch.split(tokens, rows)]
        costs: NDArray[np.float64] = torch.cat(parts).cpu().numpy()
        if not np.isfinite(costs).all():
            raise ModelError(
                f"the model returned a cost that is not finite for {int((~np.isfinite(costs)).sum())} of {len(costs)} "
                "samples; a log-perplexity needs finite logits. Look at the training (a loss that became NaN?)."
            )
        return costs

    def _logits(self, tokens: Tensor) -> Tensor:
        """The logits `(batch, time - 1, vocabulary)` after every token but the last."""
        read: Any = getattr(self.model, "at_once", None)
        given = tokens[:, :-1]
        if read is not None:
            logits: Tensor = read(given)
            if logits.shape[1] == given.shape[1]:
                return logits
        return self._step_by_step(given)

    def _step_by_step(self, tokens: Tensor) -> Tensor:
        """The same with a model that says only what comes next."""
        begun = [self.model.start([int(token)]) for token in tokens[:, 0]]
        logits = [torch.cat([after for after, _ in begun])]
        state = self.model.concatenate([state for _, state in begun])
        for column in tokens[:, 1:].unbind(dim=1):
            after, state = self.model.step(state, column)
            logits.append(after)
        return torch.stack(logits, dim=1)


def _windows(ids: list[int], window: int | None) -> list[tuple[list[int], int]]:
    """Parts of a row that a model can read, and how many tokens of each are there only for what comes after.

    >>> _windows([1, 2, 3, 4, 5, 6, 7], window=4)
    [([1, 2, 3, 4], 1), ([3, 4, 5, 6], 2), ([5, 6, 7], 2)]
    """
    if len(ids) < 2:
        return []
    if window is None or len(ids) <= window:
        return [(ids, 1)]
    step = window - window // 2
    found = [(ids[:window], 1)]
    done = window
    while done < len(ids):
        start = done - window // 2
        found.append((ids[start : done + step], window // 2))
        done += step
    return found


def _bits(logits: Tensor, tokens: Tensor, known: int) -> Tensor:
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    targets = tokens[:, 1:]
    nats = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return nats.double().reshape(targets.shape)[:, known - 1 :].sum(dim=1) / _LN2
