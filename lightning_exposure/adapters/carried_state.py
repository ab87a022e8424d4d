"""The adapter for models whose forward takes and returns a state: reading one more token costs one step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from lightning_exposure.adapters._modules_as_found import (
    BY_HAND,
    initial_states,
    probe_tokens,
    refuse_other_shapes,
    with_forward,
)
from lightning_exposure.adapters._reading_in_parts import difference_in_parts
from lightning_exposure.adapters.protocol import device_of, evaluating, logits_in_layout
from lightning_exposure.adapters.registry import ADAPTERS
from lightning_exposure.adapters.states import (
    ModelState,
    batch_dimensions,
    bytes_of,
    concatenate,
    holds_tensors,
    select_rows,
    tensors_of,
)
from lightning_exposure.errors import ModelError

_STATE_NAMES = {"state", "states", "hidden", "hiddens", "h", "hc", "hx", "h0", "memory", "carry", "cache"}
_PROMPT, _PATHS = [0, 1], [[0, 1], [1, 0]]
"""Tokens that any vocabulary has, to try a module with."""
_NAMEABLE = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@ADAPTERS.register("recurrent", priority=-20)
class RecurrentAdapter:
    """Reads with a module whose forward is `logits, state = module(tokens, state)`.

    The state may be a tensor (GRU), a pair (LSTM), or nested tuples, lists and dicts of tensors. Which dimension of
    each tensor is the batch is found by running a batch of two and one of three.

    Args:
        module: The model. Its logits may be flattened to `(batch * time, vocabulary)`, or be those of the last
            position alone.
        state_argument: The name of forward's argument that takes the state; None: the second one.
        initial_state: Makes the state for a batch of the given size, for a forward that cannot do without one; such as
            the method `init_hidden` of many modules.
        time_first: Whether forward takes token ids `(time, batch)` and gives logits in the same order, as `nn.LSTM`
            does without `batch_first=True`.

    Example:
        >>> class Model(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embed, self.out = nn.Embedding(9, 4), nn.Linear(5, 9)
        ...         self.cell = nn.GRU(4, 5, batch_first=True)
        ...     def forward(self, tokens, hidden=None):
        ...         features, hidden = self.cell(self.embed(tokens), hidden)
        ...         return self.out(features), hidden
        >>> adapter = RecurrentAdapter(Model())
        >>> logits, state = adapter.start([1, 2, 3])
        >>> logits.shape, state.shape
        (torch.Size([1, 9]), torch.Size([1, 1, 5]))
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        state_argument: str | None = None,
        initial_state: Callable[[int], ModelState] | None = None,
        time_first: bool = False,
    ) -> None:
        self._module = module
        self._time_first = time_first
        self._state_argument = state_argument
        self._initial_state = initial_state
        with evaluating(module):
            of_two, of_three = (self.read(self._zeros(batch, 2), self.first(batch))[1] for batch in (2, 3))
        self._dimensions = batch_dimensions(of_two, of_three)
        for tensor, dimension in zip(tensors_of(of_two), _ints(self._dimensions), strict=True):
            if dimension < 0:
                raise ModelError(
                    f"the state of {type(module).__name__} has a tensor of shape {tuple(tensor.shape)} for a batch "
                    "of 2 in which no single dimension follows the batch size. Use StatelessAdapter(module), or hand "
                    "SecretTree a StepModel of your own."
                )

    @classmethod
    def recognise(cls, module: nn.Module, /, *, context: int | None = None) -> RecurrentAdapter | None:
        """An adapter for a forward that returns a state and takes it back; None if the module has no state.

        Raises:
            ModelError: The state does not carry what was read.
        """
        if context is not None:  # only a stateless model has a context to limit
            return None
        model = with_forward(module)
        with evaluating(model):
            try:
                output = model(probe_tokens(model, 2, 3))
            except Exception:  # it may need a state, which a method of its own makes
                return cls._first_that_carries(model, *initial_states(model))
            refuse_other_shapes(model, output)
            if not (isinstance(output, (tuple, list)) and len(output) > 1 and holds_tensors(output[1])):
                return None
            adapter = cls._first_that_carries(model, None)
        likely = [name for name in _arguments(model) if name in _STATE_NAMES]
        if adapter is None and likely:
            raise ModelError(
                f"forward of {type(model).__name__} takes {likely[0]!r} and returns a state, but reading a string in "
                f"two parts with it does not give the logits of reading it in one{_both_ways(model)}. {BY_HAND}"
            )
        return adapter

    @classmethod
    def _first_that_carries(
        cls, model: nn.Module, *initial: Callable[[int], ModelState] | None
    ) -> RecurrentAdapter | None:
        """The first way to hand over a state that carries what was read; ids may have to be `(time, batch)` for it."""
        named = _arguments(model)
        likely = [name for name in named if name in _STATE_NAMES]
        for name, first, time_first in product(likely or named[:1], initial, (False, True)):
            try:
                adapter = cls(model, state_argument=name, initial_state=first, time_first=time_first)
                # The last logits alone: whether those before them see what comes is asked later, of all models alike.
                reason = difference_in_parts(adapter, adapter.at_once, _PROMPT, _PATHS, last=1, lengths=False)
                if reason is None:
                    return adapter
            except Exception:  # whatever a model of unknown making does when its state is of another kind
                continue
        return None

    @property
    def module(self) -> nn.Module:
        """The module that reads."""
        return self._module

    @property
    def time_first(self) -> bool:
        """Whether the module is given token ids `(time, batch)`."""
        return self._time_first

    def start(self, tokens: Sequence[int], /) -> tuple[Tensor, ModelState]:
        """Read a prompt from the initial state."""
        prompt = torch.tensor([list(tokens)], dtype=torch.long, device=device_of(self._module))
        logits, state = self.read(prompt, self.first(1))
        return logits[:, -1], state

    def step(self, state: ModelState, tokens: Tensor, /) -> tuple[Tensor, ModelState]:
        """Read one more token in each row."""
        logits, after = self.read(tokens[:, None], state)
        return logits[:, -1], after

    def select(self, state: ModelState, rows: Tensor, /) -> ModelState:
        """The state of some rows."""
        return select_rows(state, self._dimensions, rows)

    def concatenate(self, states: Sequence[ModelState], /) -> ModelState:
        """Several batches of states as one."""
        return concatenate(states, self._dimensions)

    def bytes_of(self, state: ModelState, /) -> int:
        """The memory a state takes."""
        return bytes_of(state)

    def contents(self, state: ModelState, /) -> Iterator[Tensor]:
        """The tensors of a state."""
        yield from tensors_of(state)

    def _zeros(self, batch: int, time: int) -> Tensor:
        return torch.zeros(batch, time, dtype=torch.long, device=device_of(self._module))

    def first(self, batch: int) -> ModelState | None:
        """The state before the first token, for some rows; None: the module makes it itself."""
        return self._initial_state(batch) if self._initial_state is not None else None

    def at_once(self, tokens: Tensor, last: int | None = None) -> Tensor:
        """The logits `(batch, time, vocabulary)` of one pass over rows from the initial state, or the last ones."""
        return self.read(tokens, self.first(len(tokens)))[0]

    def read(self, tokens: Tensor, state: ModelState | None) -> tuple[Tensor, ModelState]:
        """Read several tokens `(batch, time)` from a state; None: from one that the module makes itself.

        Returns:
            The logits `(batch, time, vocabulary)`, or those of the last position alone, and the state.
        """
        output = self._call(tokens, state)
        after = output[1] if isinstance(output, (tuple, list)) and len(output) > 1 else None
        logits = logits_in_layout(output, *tokens.shape, time_first=self._time_first)
        if not holds_tensors(after):
            raise ModelError(
                f"forward of {type(self._module).__name__} returned no state beside its logits; RecurrentAdapter "
                "expects (logits, state), the state made of tensors. Use StatelessAdapter(module) for a model "
                "without a state."
            )
        return logits, after

    def _call(self, tokens: Tensor, state: ModelState | None) -> Any:
        tokens = (tokens.T if self._time_first else tokens).contiguous()
        if state is None:
            return self._module(tokens)
        if self._state_argument is None:
            return self._module(tokens, state)
        return self._module(tokens, **{self._state_argument: state})


def _ints(dimensions: Any) -> list[int]:
    """The batch dimensions of a nested state, flat, in the order of `tensors_of`."""
    if isinstance(dimensions, int):
        return [dimensions]
    items = dimensions.values() if isinstance(dimensions, dict) else dimensions
    return [dimension for item in items for dimension in _ints(item)]


def _arguments(model: nn.Module) -> list[str]:
    """The names of forward's arguments after the first."""
    return [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind in _NAMEABLE][1:]


def _both_ways(model: nn.Module) -> str:
    names = [name for name, part in model.named_modules() if getattr(part, "bidirectional", False) is True]
    return f": {', '.join(names)} reads in both directions, and a language model must be causal" if names else ""
