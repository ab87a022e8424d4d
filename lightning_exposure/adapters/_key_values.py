"""What rows have read after a prompt that they share: the prompt's keys and values once, and each row's own.

Rows of different lengths stand in one batch, each at the end of the columns, so that the newest token of every row is
in the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lightning_exposure.adapters._large_tensors import empty
from lightning_exposure.adapters.states import ModelState, tensors_of
from lightning_exposure.errors import ModelError

KeysAndValues = tuple[Tensor, Tensor]
"""Of one layer."""


@dataclass(frozen=True, eq=False)
class PromptKeyValues:
    """The key-value cache of a prompt, for all rows that go on from it.

    Attributes:
        tokens: The prompt.
        layers: Keys and values of each layer `(key heads, tokens, size)`.
        numbers: For each number by which the model calls a layer, which of the layers it is.
        beside: What else all rows share, made of tensors, such as what a decoder looks up in its source.
    """

    tokens: tuple[int, ...]
    layers: tuple[KeysAndValues, ...]
    numbers: dict[int, int]
    beside: ModelState = None

    @cached_property
    def places(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Where rows keep their own keys (0) and values (1) of each layer: in which stack, and which of it."""
        stacks: dict[tuple[int, torch.dtype, torch.device], list[tuple[int, int]]] = {}
        for layer, pair in enumerate(self.layers):
            for which, tensor in enumerate(pair):
                kind = (tensor.shape[0] * tensor.shape[2], tensor.dtype, tensor.device)
                stacks.setdefault(kind, []).append((layer, which))
        return {of: (stack, at) for stack, kept in enumerate(stacks.values()) for at, of in enumerate(kept)}

    def holds_the_same_as(self, other: PromptKeyValues) -> bool:
        """Whether another prompt was read by the same weights to the same effect."""
        mine, theirs = (list(tensors_of([prompt.layers, prompt.beside])) for prompt in (self, other))
        return self.tokens == other.tokens and len(mine) == len(theirs) and all(map(torch.equal, mine, theirs))

    def no_tokens(self) -> RowKeyValues:
        """One row that has read nothing after the prompt."""
        kept: dict[int, list[Tensor]] = {}
        for (layer, which), (stack, _) in self.places.items():
            kept.setdefault(stack, []).append(self.layers[layer][which])
        stacks = tuple(of[0].new_empty(len(of), 1, 0, of[0].shape[0] * of[0].shape[2]) for of in kept.values())
        return RowKeyValues(self, torch.zeros(1, dtype=torch.long, device=stacks[0].device), stacks)


class RowKeyValues:
    """What some rows have read after a prompt.

    Args:
        prompt: What they all read before.
        lengths: How many tokens each row has of its own.
        stacks: Their keys and values in all layers `(tensors, rows, columns, key heads x size)`, those of one size in
            one stack; a row that is shorter than others has zeros in its first columns.
        longer: The same with more columns at the end, which nobody has written to yet. The first who reads on from
            these rows writes there; others make a copy.
    """

    __slots__ = ("_longer", "lengths", "prompt", "stacks")

    def __init__(
        self,
        prompt: PromptKeyValues,
        lengths: Tensor,
        stacks: tuple[Tensor, ...],
        longer: tuple[Tensor, ...] | None = None,
    ) -> None:
        self.prompt = prompt
        self.lengths = lengths
        self.stacks = stacks
        self._longer = longer

    def __len__(self) -> int:
        """How many rows."""
        return len(self.lengths)

    @property
    def columns(self) -> int:
        """How many tokens there is room for."""
        return self.stacks[0].shape[2]

    @property
    def nbytes(self) -> int:
        """The memory that the rows take beside the prompt, columns that are not written yet included."""
        return self.lengths.nbytes + sum(stack.untyped_storage().nbytes() for stack in self.stacks)

    def own(self, layer: int, which: int) -> Tensor:
        """The rows' own keys (0) or values (1) of a layer `(rows, columns, key heads, size)`."""
        stack, at = self.prompt.places[layer, which]
        heads, _, size = self.prompt.layers[layer][which].shape
        tensor = self.stacks[stack][at]
        return tensor.view(*tensor.shape[:2], heads, size)

    def select(self, rows: Tensor) -> RowKeyValues:
        """Some of the rows, with no more columns than the longest of them needs."""
        lengths = self.lengths[rows]
        columns = int(lengths.max()) if len(rows) else 0
        longer = tuple(empty(stack, len(stack), len(rows), columns + 1, stack.shape[3]) for stack in self.stacks)
        chosen = tuple(stack[:, :, :columns] for stack in longer)
        for new, stack in zip(chosen, self.stacks, strict=True):
            torch.index_select(stack[:, :, self.columns - columns :], 1, rows.to(stack.device), out=new)
        return RowKeyValues(self.prompt, lengths, chosen, longer)

    def with_one_more_column(self) -> RowKeyValues:
        """The rows, with room for one token more."""
        longer, self._longer = self._longer, None
        if longer is None:
            longer = tuple(map(_lengthened, self.stacks))
        columns = self.columns + 1
        left = longer if longer[0].shape[2] > columns else None
        return RowKeyValues(self.prompt, self.lengths + 1, tuple(stack[:, :, :columns] for stack in longer), left)


def join(states: Sequence[RowKeyValues]) -> RowKeyValues:
    """Several batches of rows as one, with as many columns as the longest row needs.

    Raises:
        ModelError: They go on from different prompts.
    """
    if len(states) == 1:
        return states[0]
    prompt = states[0].prompt
    if any(state.prompt.tokens != prompt.tokens for state in states):
        raise ModelError("states after different prompts cannot be put together: each tree has its own.")
    stacks = tuple(_joined(stacks) for stacks in zip(*(state.stacks for state in states), strict=True))
    return RowKeyValues(prompt, torch.cat([state.lengths for state in states]), stacks)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows of several stacks, each at the end of its columns; never uninitialised, not even where unseen."""
    columns = max(part.shape[2] for part in parts)
    joined = empty(parts[0], len(parts[0]), sum(part.shape[1] for part in parts), columns, parts[0].shape[3])
    first = 0
    for part in parts:
        rows = joined[:, first : first + part.shape[1]]
        rows[:, :, : columns - part.shape[2]] = 0
        rows[:, :, columns - part.shape[2] :] = part
        first += part.shape[1]
    return joined


def spare_columns(columns: int) -> int:
    """How many columns more a copy gets: one for short rows, some for long ones, which are not copied each time."""
    return max(1, columns // 8)


def _lengthened(stack: Tensor) -> Tensor:
    """A copy with more columns."""
    columns = stack.shape[2]
    longer = empty(stack, *stack.shape[:2], columns + spare_columns(columns), stack.shape[3])
    longer[:, :, :columns] = stack
    return longer
