"""The adapter for any model without a state: what it carries is the tokens themselves, read anew at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lightning_exposure._checks import whole_number
from lightning_exposure.adapters._modules_as_found import (
    forward_failed,
    probe_tokens,
    refuse_other_shapes,
    with_forward,
)
from lightning_exposure.adapters.protocol import device_of, evaluating, logits_in_layout
from lightning_exposure.adapters.registry import ADAPTERS

_LOGITS_AT_ONCE = 2**26
"""How many logits one call may make: a forward gives them for every position, and only the last is wanted."""


class Tokens(NamedTuple):
    """Rows of token ids of different lengths, the unused end of a row filled with zeros."""

    ids: Tensor
    lengths: Tensor


@ADAPTERS.register("stateless", priority=-30)
class StatelessAdapter:
    """Reads with a module whose forward is `logits = module(tokens)`, by giving it the tokens again each time.

    Rows of different lengths are never padded into one call, so that padding cannot change a score.

    Args:
        module: The model.
        context: How many of the last tokens the model is given; None: all of them.
        time_first: Whether forward takes token ids `(time, batch)` and gives logits in the same order.

    Example:
        >>> adapter = StatelessAdapter(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)), context=8)
        >>> logits, state = adapter.start([1, 2, 3])
        >>> logits.shape, state.ids.tolist()
        (torch.Size([1, 9]), [[1, 2, 3]])
    """

    def __init__(self, module: nn.Module, *, context: int | None = None, time_first: bool = False) -> None:
        if context is not None:
            whole_number("context", context, at_least=1, remedy="It counts tokens; None is all of them.")
        self._module = module
        self._context = context
        self._time_first = time_first
        self._vocabulary: int | None = None

    @classmethod
    def recognise(cls, module: nn.Module, /, *, context: int | None = None) -> StatelessAdapter:
        """An adapter for any module that maps token ids to logits: the last to be asked.

        Raises:
            ModelError: The module does not; the message says what to do.
        """
        model = with_forward(module)
        if context is None:  # else the caller has chosen
            with evaluating(model):
                try:
                    output = model(probe_tokens(model, 2, 3))
                except Exception as error:
                    raise forward_failed(model, error) from error
                refuse_other_shapes(model, output)
        return cls(model, context=context)

    @property
    def module(self) -> nn.Module:
        """The module that reads."""
        return self._module

    @property
    def rereads(self) -> bool:
        """Whether a step is a pass over all tokens."""
        return True

    @property
    def longest(self) -> int | None:
        """The largest number of tokens that the model is given."""
        return self._context

    @property
    def context(self) -> int | None:
        """How many of the last tokens the model is given."""
        return self._context

    def start(self, tokens: Sequence[int], /) -> tuple[Tensor, Tokens]:
        """Read a prompt."""
        device = device_of(self._module)
        ids = torch.tensor([list(tokens)], dtype=torch.long, device=device)
        state = self._forget(Tokens(ids, torch.tensor([ids.shape[1]], device=device)))
        return self._read(state), state

    def step(self, state: Tokens, tokens: Tensor, /) -> tuple[Tensor, Tokens]:
        """Read one more token in each row."""
        ids = torch.cat([state.ids, torch.zeros_like(state.ids[:, :1])], dim=1)
        ids.scatter_(1, state.lengths[:, None], tokens[:, None])
        after = self._forget(Tokens(ids, state.lengths + 1))
        return self._read(after), after

    def select(self, state: Tokens, rows: Tensor, /) -> Tokens:
        """The tokens of some rows."""
        return Tokens(state.ids[rows], state.lengths[rows])

    def concatenate(self, states: Sequence[Tokens], /) -> Tokens:
        """Several batches of rows as one, filled up to the longest."""
        width = max(state.ids.shape[1] for state in states)
        filled = [nn.functional.pad(state.ids, (0, width - state.ids.shape[1])) for state in states]
        return Tokens(torch.cat(filled), torch.cat([state.lengths for state in states]))

    def bytes_of(self, state: Tokens, /) -> int:
        """The memory the tokens take."""
        return sum(tensor.numel() * tensor.element_size() for tensor in state)

    def _forget(self, state: Tokens) -> Tokens:
        """Drop what lies before the context, and the filling beyond the longest row."""
        ids, lengths = state
        if self._context is not None and int(lengths.max()) > self._context:
            excess = (lengths - self._context).clamp(min=0)
            columns = torch.arange(self._context, device=ids.device) + excess[:, None]
            ids, lengths = ids.gather(1, columns.clamp(max=ids.shape[1] - 1)), lengths - excess
        return Tokens(ids[:, : int(lengths.max())], lengths)

    def _read(self, state: Tokens) -> Tensor:
        """The logits after the last token of each row."""
        lengths = torch.unique(state.lengths).tolist()
        if len(lengths) == 1:
            return self._read_equal(state.ids[:, : lengths[0]])
        groups = [(state.lengths == length).nonzero()[:, 0] for length in lengths]
        logits = [self._read_equal(state.ids[rows, :n]) for rows, n in zip(groups, lengths, strict=True)]
        return torch.cat(logits)[torch.cat(groups).argsort()]

    def _read_equal(self, ids: Tensor) -> Tensor:
        """The last logits of rows of one length, in as many calls as keep the logits of a call small."""
        if self._vocabulary is None:  # one row tells
            logits = self._last_logits(ids[:1])
            self._vocabulary = logits.shape[-1]
            if len(ids) == 1:
                return logits
        rows = max(1, _LOGITS_AT_ONCE // (ids.shape[1] * self._vocabulary))
        return torch.cat([self._last_logits(part) for part in torch.split(ids, rows)])

    def at_once(self, tokens: Tensor) -> Tensor:
        """The logits `(batch, time, vocabulary)` of one pass over rows, or those of the last position alone."""
        given = (tokens.T if self._time_first else tokens).contiguous()  # some modules ask for a view of their ids
        return logits_in_layout(self._module(given), *tokens.shape, time_first=self._time_first)

    def _last_logits(self, ids: Tensor) -> Tensor:
        return self.at_once(ids)[:, -1]
