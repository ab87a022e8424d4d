"""LSTM and GRU layers whose backward pass shows what per-example clipping needs.

PyTorch's own kernels return gradients that are summed over the batch, and nothing in between. Here the recurrence is
run without autograd, keeping the gates, and one function per layer does the backward pass through time. It reports
the two linear maps of the layer, over the whole sequence at once: what went into them and the gradients of what came
out. Outputs and gradients are those of `nn.LSTM` and `nn.GRU`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_exposure.privacy.clipping._backward_passes import HeldBack, refuse_twice

Report = Callable[[Tensor, Tensor, Tensor, Tensor], None]
"""Takes what the map of the inputs read and its gradients, then the same of the map of the hidden states.

All are `(time, batch, size)`.
"""


def lstm_layer(
    inputs: Tensor,
    hidden: Tensor | None,
    cell: Tensor | None,
    weights: tuple[Tensor, ...],
    report: Report | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer of an LSTM over a whole sequence.

    Args:
        inputs: `(time, batch, size)`.
        hidden: The hidden state `(batch, units)` to begin with; None for zeros.
        cell: The cell state `(batch, units)` to begin with; None for zeros.
        weights: Those of `nn.LSTM`: of the inputs, of the hidden states, and the two biases if there are any.
        report: Called in the backward pass, if it is one that trains.

    Returns:
        The outputs `(time, batch, units)`, and the hidden and the cell state after the last step.

    Example:
        >>> lstm = nn.LSTM(3, 4)
        >>> inputs = torch.randn(5, 2, 3)
        >>> outputs, _, _ = lstm_layer(inputs, None, None, tuple(lstm.parameters()))
        >>> torch.allclose(outputs, lstm(inputs)[0], atol=1e-6)
        True
    """
    run: Callable[..., tuple[Tensor, Tensor, Tensor]] = _Lstm.apply
    return run(inputs, hidden, cell, *_four(weights), *_anchored(inputs, report))


def gru_layer(
    inputs: Tensor, hidden: Tensor | None, weights: tuple[Tensor, ...], report: Report | None = None
) -> tuple[Tensor, Tensor]:
    """One layer of a GRU over a whole sequence; the arguments are those of `lstm_layer`.

    Example:
        >>> gru = nn.GRU(3, 4)
        >>> inputs = torch.randn(5, 2, 3)
        >>> outputs, _ = gru_layer(inputs, None, tuple(gru.parameters()))
        >>> torch.allclose(outputs, gru(inputs)[0], atol=1e-6)
        True
    """
    run: Callable[..., tuple[Tensor, Tensor]] = _Gru.apply
    return run(inputs, hidden, *_four(weights), *_anchored(inputs, report))


def run_layers(
    module: nn.LSTM | nn.GRU, inputs: Tensor, state: Any = None, report_of: Callable[[int], Report] | None = None
) -> tuple[Tensor, Any]:
    """What `module(inputs, state)` returns, computed by the functions above.

    Args:
        module: Runs in one direction and has no projection.
        inputs: A batch, `(batch, time, size)` or `(time, batch, size)` as the module wants it.
        state: What to begin with, as the module takes it.
        report_of: Gives the report of a layer by its number.
    """
    drops = module.training and module.dropout > 0
    kind = layer_weights(module, 0)[0].dtype
    with torch.autocast(inputs.device.type, enabled=False):
        signal = inputs.to(kind)
        # Time first, in memory too: the recurrence reads step after step.
        signal = signal.transpose(0, 1).contiguous() if module.batch_first else signal
        lasts: list[tuple[Tensor, ...]] = []
        for layer in range(module.num_layers):
            if layer > 0 and drops:
                signal = functional.dropout(signal, module.dropout)
            report = None if report_of is None else report_of(layer)
            weights = layer_weights(module, layer)
            if isinstance(module, nn.LSTM):
                hidden, cell = (None, None) if state is None else (part[layer].to(kind) for part in state)
                signal, *last = lstm_layer(signal, hidden, cell, weights, report)
            else:
                hidden = None if state is None else state[layer].to(kind)
                signal, *last = gru_layer(signal, hidden, weights, report)
            lasts.append(tuple(last))
        outputs = signal.transpose(0, 1) if module.batch_first else signal
        states = tuple(torch.stack(parts) for parts in zip(*lasts, strict=True))
    return outputs, states if isinstance(module, nn.LSTM) else states[0]


def layer_weights(module: nn.LSTM | nn.GRU, layer: int) -> tuple[nn.Parameter, ...]:
    """The weights of one layer: of the inputs, of the hidden states, and the two biases if there are any."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if module.bias else ("weight_ih", "weight_hh")
    return tuple(getattr(module, f"{name}_l{layer}") for name in names)


def _four(weights: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    return (*weights, None, None)[:4]


def _anchored(inputs: Tensor, report: Report | None) -> tuple[HeldBack | None, Tensor | None]:
    # With something among its inputs that wants a gradient, the backward pass comes by even if nothing else does.
    if report is None:
        return None, None
    held = HeldBack(report)
    return held, held.leaf(inputs.device)


class _Lstm(torch.autograd.Function):
    """The gates are in the order of `nn.LSTM`: input, forget, candidate, output."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        hidden: Tensor | None,
        cell: Tensor | None,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None,
        b_hh: Tensor | None,
        held: HeldBack | None,
        _: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        time, batch, _size = inputs.shape
        units = w_hh.shape[1]
        gates = functional.linear(inputs, w_ih, None if b_ih is None or b_hh is None else b_ih + b_hh)
        hiddens = _beginning_with(hidden, time, batch, units, gates)
        cells = _beginning_with(cell, time, batch, units, gates)
        tanhs = gates.new_empty(time, batch, units)
        # Tuples of views, one for each step: indexing a tensor inside the loop takes longer than a small product.
        all_gates, half = gates.unbind(), gates[..., : 2 * units].unbind()
        i, f, g, o = (part.unbind() for part in gates.chunk(4, -1))
        h, c, tanh = hiddens.unbind(), cells.unbind(), tanhs.unbind()
        for t in range(time):
            if t > 0 or hidden is not None:
                all_gates[t].addmm_(h[t], w_hh.t())
            half[t].sigmoid_()
            g[t].tanh_()
            o[t].sigmoid_()
            torch.mul(f[t], c[t], out=c[t + 1]).addcmul_(i[t], g[t])
            torch.mul(o[t], torch.tanh(c[t + 1], out=tanh[t]), out=h[t + 1])
        ctx.save_for_backward(inputs, w_ih, w_hh, gates, hiddens, cells, tanhs)
        ctx.held = held
        # Copies, because what is kept for the backward pass must not change when someone works in place on the outputs.
        return hiddens[1:].clone(), hiddens[-1].clone(), cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor, d_hidden: Tensor, d_cell: Tensor) -> tuple[Tensor | None, ...]:
        refuse_twice("nn.LSTM")
        inputs, w_ih, w_hh, gates, hiddens, cells, tanhs = ctx.saved_tensors
        wants_hidden, wants_cell = ctx.needs_input_grad[1:3]
        with torch.autocast(gates.device.type, enabled=False):
            d_gates = torch.empty_like(gates)
            i, f, g, o = (part.unbind() for part in gates.chunk(4, -1))
            d_i, d_f, d_g, d_o = (part.unbind() for part in d_gates.chunk(4, -1))
            all_d, c, tanh, d_out = d_gates.unbind(), cells.unbind(), tanhs.unbind(), d_outputs.unbind()
            dh, dc = d_hidden.clone(), d_cell.clone()
            part = torch.empty_like(dh)
            for t in reversed(range(len(d_out))):
                # Each line multiplies into what the line before it left, so that nothing is computed twice and
                # everything stays in the cache: o * dh, then its product with the two tanhs, and so on.
                dh += d_out[t]
                dc += torch.mul(dh, o[t], out=part)
                dc.addcmul_(part.mul_(tanh[t]), tanh[t], value=-1)
                torch.addcmul(part, part, o[t], value=-1, out=d_o[t])
                torch.mul(dc, i[t], out=part)
                torch.mul(part, g[t], out=d_i[t])
                torch.addcmul(part, d_i[t], g[t], value=-1, out=d_g[t])
                d_i[t].addcmul_(d_i[t], i[t], value=-1)
                dc *= f[t]
                torch.mul(dc, c[t], out=part)
                torch.addcmul(part, part, f[t], value=-1, out=d_f[t])
                if t > 0 or wants_hidden:
                    torch.mm(all_d[t], w_hh, out=dh)
            *found, shown = _finish(ctx, inputs, w_ih, hiddens[:-1], d_gates, d_gates, ctx.needs_input_grad[3:7])
        return found[0], dh if wants_hidden else None, dc if wants_cell else None, *found[1:], None, shown


class _Gru(torch.autograd.Function):
    """The gates are in the order of `nn.GRU`: reset, update, candidate."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        hidden: Tensor | None,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None,
        b_hh: Tensor | None,
        held: HeldBack | None,
        _: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        time, batch, _size = inputs.shape
        units = w_hh.shape[1]
        gates = functional.linear(inputs, w_ih, b_ih)
        if b_hh is not None:
            gates[..., : 2 * units] += b_hh[: 2 * units]
        hiddens = _beginning_with(hidden, time, batch, units, gates)
        # What the hidden states add to the candidate, before the reset gate decides how much of it counts.
        recalls = gates.new_zeros(time, batch, units) if b_hh is None else b_hh[2 * units :].repeat(time, batch, 1)
        half = gates[..., : 2 * units].unbind()
        r, z, n = (part.unbind() for part in gates.chunk(3, -1))
        h, recall = hiddens.unbind(), recalls.unbind()
        for t in range(time):
            if t > 0 or hidden is not None:
                half[t].addmm_(h[t], w_hh[: 2 * units].t())
                recall[t].addmm_(h[t], w_hh[2 * units :].t())
            half[t].sigmoid_()
            n[t].addcmul_(r[t], recall[t]).tanh_()
            torch.lerp(n[t], h[t], z[t], out=h[t + 1])
        ctx.save_for_backward(inputs, w_ih, w_hh, gates, hiddens, recalls)
        ctx.held = held
        return hiddens[1:].clone(), hiddens[-1].clone()

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor, d_hidden: Tensor) -> tuple[Tensor | None, ...]:
        refuse_twice("nn.GRU")
        inputs, w_ih, w_hh, gates, hiddens, recalls = ctx.saved_tensors
        wants_hidden = ctx.needs_input_grad[1]
        with torch.autocast(gates.device.type, enabled=False):
            # The candidate's gradient reaches the map of the hidden states through the reset gate; the rest is alike.
            d_ih, d_hh = torch.empty_like(gates), torch.empty_like(gates)
            units = w_hh.shape[1]
            r, z, n = (part.unbind() for part in gates.chunk(3, -1))
            d_r, d_z, d_n = (part.unbind() for part in d_ih.chunk(3, -1))
            half_ih, half_hh = d_ih[..., : 2 * units].unbind(), d_hh[..., : 2 * units].unbind()
            d_recall, all_hh = d_hh[..., 2 * units :].unbind(), d_hh.unbind()
            h, recall, d_out = hiddens.unbind(), recalls.unbind(), d_outputs.unbind()
            dh = d_hidden.clone()
            new, part = torch.empty_like(dh), torch.empty_like(dh)
            for t in reversed(range(len(d_out))):
                dh += d_out[t]
                torch.addcmul(dh, dh, z[t], value=-1, out=new)
                torch.mul(new, n[t], out=part)
                torch.addcmul(new, part, n[t], value=-1, out=d_n[t])
                torch.mul(new.mul_(z[t]), h[t], out=d_z[t]).addcmul_(new, n[t], value=-1)
                torch.mul(d_n[t], r[t], out=d_recall[t])
                torch.mul(d_recall[t], recall[t], out=part)
                torch.addcmul(part, part, r[t], value=-1, out=d_r[t])
                half_hh[t].copy_(half_ih[t])
                dh *= z[t]
                if t > 0 or wants_hidden:
                    dh.addmm_(all_hh[t], w_hh)
            *found, shown = _finish(ctx, inputs, w_ih, hiddens[:-1], d_ih, d_hh, ctx.needs_input_grad[2:6])
        return found[0], dh if wants_hidden else None, *found[1:], None, shown


def _beginning_with(state: Tensor | None, time: int, batch: int, units: int, like: Tensor) -> Tensor:
    """Room for the state before the first step, which is filled in, and after each step."""
    states = like.new_empty(time + 1, batch, units)
    states[0] = 0 if state is None else state
    return states


def _finish(
    ctx: Any, inputs: Tensor, w_ih: Tensor, before: Tensor, d_ih: Tensor, d_hh: Tensor, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Show the two linear maps. The gradients of the inputs, of the weights that autograd asks for, and of the leaf."""
    flat_ih, flat_hh = d_ih.flatten(0, 1), d_hh.flatten(0, 1)
    return (
        (flat_ih @ w_ih).view_as(inputs) if ctx.needs_input_grad[0] else None,
        flat_ih.t() @ inputs.flatten(0, 1) if wanted[0] else None,
        flat_hh.t() @ before.flatten(0, 1) if wanted[1] else None,
        flat_ih.sum(0) if wanted[2] else None,
        flat_hh.sum(0) if wanted[3] else None,
        None if ctx.held is None else ctx.held.show(inputs, d_ih, before, d_hh),
    )
