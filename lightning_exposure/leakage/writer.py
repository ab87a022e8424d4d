"""`TextWriter`: text sampled from a model, many samples at once, one token after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lightning_exposure._checks import instance, refusal, whole_number
from lightning_exposure.adapters.choosing import step_model
from lightning_exposure.adapters.protocol import StepModel, evaluating
from lightning_exposure.adapters.states import ModelState
from lightning_exposure.errors import ArgumentError, TokenizerError
from lightning_exposure.leakage._writing import read_prompt
from lightning_exposure.leakage.decoder import Decoder
from lightning_exposure.tokenization.huggingface.tokenizer import as_tokenizer
from lightning_exposure.tokenization.protocol import HasAddedTokens, Tokenizer, capability

_NEUTRAL = ("", "\n", " ")
"""What is tried as a prompt that says nothing: the tokens that stand before any text, a new line, a space."""


class Written(NamedTuple):
    """One sample.

    Attributes:
        text: The prompt and what the model has written behind it.
        start: Where what it has written begins.
        tokens: How many tokens it has written.
    """

    text: str
    start: int
    tokens: int


class TextWriter:
    """Writes samples by their numbers: sample 7 of a seed is the same, whatever others are written with it.

    Each sample has random numbers of its own, so that neither `batch_size` nor the number of samples nor their `length`
    changes how a sample begins. The model's own rounding may differ from one batch size to the next; where a random
    number falls into that difference, two tokens out of millions, a sample goes on in another way.

    Args:
        model: Any model that `SecretTree` takes.
        tokenizer: How it reads text.
        prompt: What it is given; None: what the tokenizer puts before every text, or else a new line or a space.
        decoder: How a token is drawn.
        length: How many tokens are written at most.
        seed: Of all random numbers.
        end: The ids of tokens that end a text; None: the tokenizer's `eos_token_id`, if it has one.
        batch_size: How many samples are written at once.
        context: For a model without a state: how many of the last tokens it is given; None: all.

    Raises:
        ArgumentError: An argument is out of range; it is named.
        ModelError: No adapter fits the model.
        TokenizerError: The prompt cannot be spelled.

    Example:
        >>> from lightning_exposure.tokenization import CharTokenizer
        >>> _ = torch.manual_seed(0)
        >>> letters = CharTokenizer.from_text("abc ")
        >>> writer = TextWriter(nn.Embedding(4, 4), letters, length=6, seed=1)
        >>> [written.text for written in writer.write(range(3))] == [writer.write([n])[0].text for n in range(3)]
        True
    """

    def __init__(
        self,
        model: nn.Module | StepModel,
        tokenizer: Tokenizer | Any,
        *,
        prompt: str | None = None,
        decoder: Decoder | None = None,
        length: int = 200,
        seed: int = 0,
        end: Sequence[int] | None = None,
        batch_size: int = 256,
        context: int | None = None,
    ) -> None:
        self.length = whole_number("length", length, at_least=1, remedy="It counts tokens.")
        self.seed = whole_number("seed", seed, at_least=0)
        self.batch_size = whole_number("batch_size", batch_size, at_least=1)
        self.decoder = Decoder() if decoder is None else instance("decoder", decoder, Decoder, "a Decoder")
        self._end = _checked_ends(end)
        self.tokenizer = as_tokenizer(tokenizer)
        self.prompt = _prompt_tokens(self.tokenizer, prompt)
        self.model = step_model(model, context=context)
        self._refuse_beyond_end()
        if end is None:
            self._end = _own_end(tokenizer)
        known = capability(self.tokenizer, HasAddedTokens)
        self._ids = self.tokenizer.vocab_size if known is None else known.number_of_ids()
        self._before = self._decode(self.prompt)

    def write(self, samples: Sequence[int]) -> list[Written]:
        """The samples with these numbers."""
        return [written for batch in self.batches(samples) for written in batch]

    def batches(self, samples: Sequence[int]) -> Iterator[list[Written]]:
        """The same, as many at a time as are written together.

        Raises:
            ModelError: The model returned NaN, or logits of a wrong shape.
        """
        if not len(samples):
            return
        with evaluating(self.model.module):
            first = self.model.start(self.prompt)
        for begin in range(0, len(samples), self.batch_size):
            numbers = self._random_numbers(samples[begin : begin + self.batch_size])
            with evaluating(self.model.module):
                rows = self._write_rows(*first, numbers)
            yield [self._as_text(row) for row in rows.tolist()]

    def _write_rows(self, logits: Tensor, state: ModelState, numbers: Tensor) -> Tensor:
        """The tokens of some samples `(samples, length)`; -1 behind an end.

        A sample that has ended is written on, unseen, until half of the batch has ended: picking rows copies states.
        """
        rows, length = numbers.shape
        numbers, end = numbers.to(logits.device), self._end.to(logits.device)
        written = torch.full((rows, length), -1, device=logits.device)
        which = torch.arange(rows, device=logits.device)
        is_open = torch.ones(rows, dtype=torch.bool, device=logits.device)
        state, logits = self.model.select(state, torch.zeros_like(which)), logits.expand(rows, -1)
        for place in range(length):
            tokens = self.decoder.draw(logits, numbers[which, place])
            if len(end):
                is_open &= ~torch.isin(tokens, end)
                written[which, place] = torch.where(is_open, tokens, -1)
                if not bool(is_open.any()):
                    break
                if 2 * int(is_open.sum()) <= len(which):
                    kept = is_open.nonzero()[:, 0]
                    state, which, tokens, is_open = (
                        self.model.select(state, kept),
                        which[kept],
                        tokens[kept],
                        is_open[kept],
                    )
            else:
                written[:, place] = tokens
            if place + 1 < length:
                logits, state = self.model.step(state, tokens)
        return written

    def _random_numbers(self, samples: Sequence[int]) -> Tensor:
        """Numbers from 0 to 1 for each token of some samples: of each sample a stretch of one long sequence."""
        streams = (np.random.Philox(key=self.seed, counter=[0, 0, sample, 0]) for sample in samples)
        return torch.from_numpy(np.stack([np.random.Generator(stream).random(self.length) for stream in streams]))

    def _as_text(self, row: list[int]) -> Written:
        tokens = [token for token in row if token >= 0]
        # Together: many tokenizers write the first token of a text in another way than the same one behind others.
        text = self._decode([*self.prompt, *tokens])
        start = len(self._before) if text.startswith(self._before) else 0
        return Written(text, start, len(tokens))

    def _decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; one that the model has and the tokenizer has not (padding of a vocabulary) has none."""
        return self.tokenizer.decode([token for token in tokens if token < self._ids])

    def _refuse_beyond_end(self) -> None:
        """What forgets its beginning may write for ever; what cannot, only as much as it can read."""
        forgets = getattr(self.model, "context", None) is not None
        longest = None if forgets else getattr(self.model, "longest", None)
        if longest is not None and len(self.prompt) + self.length > longest:
            raise refusal(
                "length", self.length, f"at most {longest - len(self.prompt)}",
                f"The model reads {longest} tokens, and the prompt has {len(self.prompt)}.",
            )  # fmt: skip


def _prompt_tokens(tokenizer: Tokenizer, given: str | None) -> list[int]:
    """The tokens of a prompt, or of one that says nothing."""
    if given is not None:
        instance("prompt", given, str, "the text that the model is given", "Leave it out for one that says nothing.")
        return read_prompt(tokenizer, given).tokens
    for text in _NEUTRAL:
        try:
            return read_prompt(tokenizer, text).tokens
        except TokenizerError:
            continue
    raise ArgumentError(
        "prompt is None, and the tokenizer can spell neither a new line nor a space; expected the text that the model "
        "is given before it writes. Give one, such as prompt='The '."
    )


def _checked_ends(end: Sequence[int] | None) -> Tensor:
    listed = [] if end is None else list(end) if isinstance(end, Sequence) and not isinstance(end, str) else None
    if listed is None:
        raise refusal("end", end, "the ids of the tokens that end a text, a list", "Write [] for none.")
    return torch.tensor([whole_number(f"end[{place}]", it, at_least=0) for place, it in enumerate(listed)]).long()


def _own_end(tokenizer: Any) -> Tensor:
    """The token that ends a text, if the tokenizer has one."""
    found = getattr(tokenizer, "eos_token_id", None)
    return torch.tensor([found] if isinstance(found, int) else []).long()
