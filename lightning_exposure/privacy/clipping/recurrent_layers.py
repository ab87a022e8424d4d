"""`nn.LSTM`, `nn.GRU` and `nn.RNN`, run by kernels that report what per-example clipping needs.

With any number of layers, in one direction or both, with projections, on padded and on packed batches. Outputs, states
and gradients are those of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lightning_exposure.privacy.clipping._backward_passes import HeldBack
from lightning_exposure.privacy.clipping._recurrent_kernels import Gru, Lstm, Rnn, Sweep

Recurrent = nn.LSTM | nn.GRU | nn.RNN
KINDS = (nn.LSTM, nn.GRU, nn.RNN)

Report = Callable[..., None]
"""Takes what the map of the inputs read and its gradients, the same of the map of the hidden states, and of the
projection if there is one.

All are `(time, batch, size)`; the rows of a packed batch are sorted as it is.
"""


class LayerWeights(NamedTuple):
    """The weights of one layer in one direction; None where it has none."""

    w_ih: nn.Parameter
    w_hh: nn.Parameter
    b_ih: nn.Parameter | None
    b_hh: nn.Parameter | None
    w_hr: nn.Parameter | None


def lstm_layer(
    inputs: Tensor,
    hidden: Tensor | None,
    cell: Tensor | None,
    weights: Sequence[Tensor | None],
    report: Report | None = None,
    sweep: Sweep | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer of an LSTM over a whole sequence.

    Args:
        inputs: `(time, batch, size)`.
        hidden: The hidden state `(batch, units)` to begin with; None for zeros.
        cell: The cell state `(batch, units)` to begin with; None for zeros.
        weights: Those of `nn.LSTM`: of the inputs, of the hidden states, and the two biases and the projection if
            there are any.
        report: Called in the backward pass, if it is one that trains.
        sweep: In which direction, and for which rows; from the first step to the last for all of them, if None.

    Returns:
        The outputs `(time, batch, units)`, and the hidden and the cell state after the last step.

    Example:
        >>> lstm = nn.LSTM(3, 4)
        >>> inputs = torch.randn(5, 2, 3)
        >>> outputs, _, _ = lstm_layer(inputs, None, None, tuple(lstm.parameters()))
        >>> torch.allclose(outputs, lstm(inputs)[0], atol=1e-6)
        True
    """
    run: Callable[..., tuple[Tensor, Tensor, Tensor]] = Lstm.apply
    return run(inputs, hidden, cell, *_five(weights), sweep or Sweep(len(inputs)), *_anchored(inputs, report))


def gru_layer(
    inputs: Tensor,
    hidden: Tensor | None,
    weights: Sequence[Tensor | None],
    report: Report | None = None,
    sweep: Sweep | None = None,
) -> tuple[Tensor, Tensor]:
    """One layer of a GRU over a whole sequence; the arguments are those of `lstm_layer`.

    Example:
        >>> gru = nn.GRU(3, 4)
        >>> inputs = torch.randn(5, 2, 3)
        >>> outputs, _ = gru_layer(inputs, None, tuple(gru.parameters()))
        >>> torch.allclose(outputs, gru(inputs)[0], atol=1e-6)
        True
    """
    run: Callable[..., tuple[Tensor, Tensor]] = Gru.apply
    return run(inputs, hidden, *_five(weights), sweep or Sweep(len(inputs)), *_anchored(inputs, report))


def rnn_layer(
    inputs: Tensor,
    hidden: Tensor | None,
    weights: Sequence[Tensor | None],
    report: Report | None = None,
    sweep: Sweep | None = None,
    *,
    nonlinearity: str = "tanh",
) -> tuple[Tensor, Tensor]:
    """One layer of an `nn.RNN` over a whole sequence; the arguments are those of `lstm_layer`.

    Example:
        >>> rnn = nn.RNN(3, 4, nonlinearity="relu")
        >>> inputs = torch.randn(5, 2, 3)
        >>> outputs, _ = rnn_layer(inputs, None, tuple(rnn.parameters()), nonlinearity="relu")
        >>> torch.allclose(outputs, rnn(inputs)[0], atol=1e-6)
        True
    """
    run: Callable[..., tuple[Tensor, Tensor]] = Rnn.apply
    anchored = _anchored(inputs, report)
    return run(inputs, hidden, *_five(weights), sweep or Sweep(len(inputs)), *anchored, nonlinearity)


def run_layers(
    module: Recurrent,
    inputs: Tensor | PackedSequence,
    state: Any = None,
    report_of: Callable[[int], Report] | None = None,
) -> tuple[Any, Any]:
    """What `module(inputs, state)` returns, computed by the functions above.

    Args:
        module: Any of the three.
        inputs: A batch, `(batch, time, size)` or `(time, batch, size)` as the module wants it, or a packed one.
        state: What to begin with, as the module takes it.
        report_of: Gives the report of a layer by its place: their number times that of the directions, plus one for
            the way back.
    """
    packed = inputs if isinstance(inputs, PackedSequence) else None
    given = inputs if isinstance(inputs, Tensor) else inputs.data
    with torch.autocast(given.device.type, enabled=False):
        kind = layer_weights(module, 0).w_ih.dtype
        if packed is not None:
            signal, sizes = _padded(given.to(kind), packed.batch_sizes), packed.batch_sizes.tolist()
            state = None if state is None else module.permute_hidden(state, packed.sorted_indices)
        else:
            # Time first, in memory too: the recurrence reads step after step.
            signal, sizes = given.to(kind), None
            signal = signal.transpose(0, 1).contiguous() if module.batch_first else signal
        parts = () if state is None else state if isinstance(module, nn.LSTM) else (state,)
        starts = tuple(part.to(kind) for part in parts) or None
        signal, lasts = _stacked(module, signal, starts, sizes, report_of)
        last: Any = lasts if isinstance(module, nn.LSTM) else lasts[0]
        if packed is not None:
            data = _packed(signal, packed.batch_sizes)
            order = packed.unsorted_indices
            return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, order), module.permute_hidden(
                last, order
            )
        return signal.transpose(0, 1) if module.batch_first else signal, last


def _stacked(
    module: Recurrent,
    signal: Tensor,
    starts: tuple[Tensor, ...] | None,
    sizes: list[int] | None,
    report_of: Callable[[int], Report] | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """All layers, one on top of the other; the outputs, and the last states as PyTorch stacks them."""
    drops = module.dropout if module.training else 0.0
    directions = 2 if module.bidirectional else 1
    lasts: list[tuple[Tensor, ...]] = []
    for layer in range(module.num_layers):
        if layer > 0 and drops > 0:
            signal = _dropped(signal, drops, sizes)
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            start = None if starts is None else tuple(part[place] for part in starts)
            report = None if report_of is None else report_of(place)
            output, *last = _one(module, place, signal, start, report, Sweep(len(signal), direction == 1, sizes))
            outputs.append(output)
            lasts.append(tuple(last))
        signal = outputs[0] if directions == 1 else torch.cat(outputs, -1)
    return signal, tuple(torch.stack(parts) for parts in zip(*lasts, strict=True))


def _one(
    module: Recurrent, place: int, inputs: Tensor, start: Any, report: Report | None, sweep: Sweep
) -> tuple[Tensor, ...]:
    weights = layer_weights(module, place)
    if isinstance(module, nn.LSTM):
        hidden, cell = (None, None) if start is None else start
        return lstm_layer(inputs, hidden, cell, weights, report, sweep)
    hidden = None if start is None else start[0]
    if isinstance(module, nn.GRU):
        return gru_layer(inputs, hidden, weights, report, sweep)
    return rnn_layer(inputs, hidden, weights, report, sweep, nonlinearity=module.nonlinearity)


def layer_weights(module: Recurrent, place: int) -> LayerWeights:
    """The weights of one layer in one direction.

    Args:
        module: Has them.
        place: The number of the layer; times two with two directions, plus one for the way back.
    """
    layer, back = divmod(place, 2) if module.bidirectional else (place, 0)
    suffix = f"_l{layer}{'_reverse' if back else ''}"
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    found: list[Any] = [getattr(module, f"{name}{suffix}", None) for name in names]
    return LayerWeights(*found)


def _padded(data: Tensor, sizes: Tensor) -> Tensor:
    """The data of a packed batch as `(time, batch, size)`, rows as they are sorted there, zeros after their ends."""
    return pad_packed_sequence(PackedSequence(data, sizes))[0]


def _packed(signal: Tensor, sizes: Tensor) -> Tensor:
    """The other way round."""
    lengths = (sizes[:, None] > torch.arange(signal.shape[1])).sum(0)
    return pack_padded_sequence(signal, lengths).data


def _dropped(signal: Tensor, drops: float, sizes: list[int] | None) -> Tensor:
    if sizes is None:
        return functional.dropout(signal, drops)
    # PyTorch draws for the steps that there are, and for no padding.
    counts = torch.tensor(sizes)
    return _padded(functional.dropout(_packed(signal, counts), drops), counts)


def _five(weights: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    return (*weights, None, None, None)[:5]


def _anchored(inputs: Tensor, report: Report | None) -> tuple[HeldBack | None, Tensor | None]:
    # With something among its inputs that wants a gradient, the backward pass comes by even if nothing else does.
    if report is None:
        return None, None
    held = HeldBack(report)
    return held, held.leaf(inputs.device)
