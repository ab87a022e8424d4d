"""Recurrent layers whose backward pass shows what per-example clipping needs.

PyTorch's own kernels return gradients that are summed over the batch, and nothing in between. Here the recurrence is
run without autograd, keeping the gates, and one function per layer does the backward pass through time. It shows the
linear maps of the layer, over the whole sequence at once: what went into them and the gradients of what came out.

All functions take inputs `(time, batch, size)`, the states to begin with, the five weights of a layer (of the inputs,
of the hidden states, two biases, the projection; None where there is none), a sweep, and what keeps the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lightning_exposure.privacy.clipping._backward_passes import HeldBack, refuse_twice


@dataclass(frozen=True)
class Sweep:
    """One way through time, forth or back.

    States are kept in one tensor `(time + 1, batch, units)`, with a place before and after each step. A sweep back
    reads it from the end: nothing has to be reversed.

    Attributes:
        time: How many steps there are.
        back: Whether it begins with the last step.
        sizes: How many rows, from the first on, take part in each step, if not all do; never more than in the step
            before. That is a packed batch, whose rows are sorted by length.
    """

    time: int
    back: bool = False
    sizes: Sequence[int] | None = None

    @property
    def order(self) -> range:
        """The steps in the order in which they are made."""
        return range(self.time - 1, -1, -1) if self.back else range(self.time)

    def steps(self, tensor: Tensor) -> Sequence[Tensor]:
        """The rows that take part in each step, as views; indexing inside of a loop takes longer than a product."""
        views: Sequence[Tensor] = tensor.unbind()
        return views if self.sizes is None else [view[:rows] for view, rows in zip(views, self.sizes, strict=True)]

    def rows(self, tensor: Tensor) -> Sequence[Tensor]:
        """The same of a tensor without time, for each step."""
        return [tensor] * self.time if self.sizes is None else [tensor[:rows] for rows in self.sizes]

    def before(self, states: Tensor) -> Tensor:
        """Of the places of states those before each step, `(time, batch, units)`."""
        return states[1:] if self.back else states[:-1]

    def after(self, states: Tensor) -> Tensor:
        """Those after each step."""
        return states[:-1] if self.back else states[1:]

    def places(self, first: Tensor | None, batch: int, units: int, like: Tensor) -> Tensor:
        """Room for the states; what the sweep begins with is filled in, zeros if it is None."""
        # Where no step is made, nothing is written.
        make = like.new_empty if self.sizes is None else like.new_zeros
        states = make(self.time + 1, batch, units)
        value = torch.zeros((), dtype=like.dtype, device=like.device) if first is None else first
        if not self.back:
            states[0] = value
        elif self.sizes is None:
            states[-1] = value
        else:
            states[self._ends(batch)] = value
        return states

    def last(self, states: Tensor) -> Tensor:
        """The state of each row after the last of its steps, a copy."""
        if self.back:
            return states[0].clone()
        return states[-1].clone() if self.sizes is None else states[self._ends(states.shape[1])]

    def zeroed(self, tensor: Tensor) -> Tensor:
        """Room for something of each step: zeros where no step is made."""
        return torch.empty_like(tensor) if self.sizes is None else torch.zeros_like(tensor)

    def _ends(self, batch: int) -> tuple[Tensor, Tensor]:
        """Where the rows end: their lengths, and their numbers."""
        sizes, rows = torch.tensor(self.sizes), torch.arange(batch)
        return (sizes[:, None] > rows).sum(0), rows


class Lstm(torch.autograd.Function):
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
        w_hr: Tensor | None,
        sweep: Sweep,
        held: HeldBack | None,
        _: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The recurrence."""
        batch, units = inputs.shape[1], w_hh.shape[0] // 4
        gates = functional.linear(inputs, w_ih, _sum(b_ih, b_hh))
        hiddens = sweep.places(hidden, batch, w_hh.shape[1], gates)
        cells = sweep.places(cell, batch, units, gates)
        tanhs = gates.new_empty(sweep.time, batch, units)
        all_gates, half = sweep.steps(gates), sweep.steps(gates[..., : 2 * units])
        i, f, g, o = (sweep.steps(part) for part in gates.chunk(4, -1))
        h, new_h = sweep.steps(sweep.before(hiddens)), sweep.steps(sweep.after(hiddens))
        c, new_c = sweep.steps(sweep.before(cells)), sweep.steps(sweep.after(cells))
        tanh = sweep.steps(tanhs)
        # What the projection reads; without one these are the hidden states themselves.
        memories = None if w_hr is None else sweep.zeroed(tanhs)
        m = new_h if memories is None else sweep.steps(memories)
        for number, t in enumerate(sweep.order):
            if number > 0 or hidden is not None:
                all_gates[t].addmm_(h[t], w_hh.t())
            half[t].sigmoid_()
            g[t].tanh_()
            o[t].sigmoid_()
            torch.mul(f[t], c[t], out=new_c[t]).addcmul_(i[t], g[t])
            torch.mul(o[t], torch.tanh(new_c[t], out=tanh[t]), out=m[t])
            if w_hr is not None:
                torch.mm(m[t], w_hr.t(), out=new_h[t])
        ctx.save_for_backward(inputs, w_ih, w_hh, w_hr, gates, hiddens, cells, tanhs, memories)
        ctx.held, ctx.sweep = held, sweep
        # Copies, because what is kept for the backward pass must not change when someone works in place on the outputs.
        return sweep.after(hiddens).clone(), sweep.last(hiddens), sweep.last(cells)

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor, d_hidden: Tensor, d_cell: Tensor) -> tuple[Tensor | None, ...]:
        """The way back through time."""
        refuse_twice("nn.LSTM")
        inputs, w_ih, w_hh, w_hr, gates, hiddens, cells, tanhs, memories = ctx.saved_tensors
        wants_hidden, wants_cell = ctx.needs_input_grad[1:3]
        sweep: Sweep = ctx.sweep
        with torch.autocast(gates.device.type, enabled=False):
            d_gates = sweep.zeroed(gates)
            i, f, g, o = (sweep.steps(part) for part in gates.chunk(4, -1))
            d_i, d_f, d_g, d_o = (sweep.steps(part) for part in d_gates.chunk(4, -1))
            all_d, c = sweep.steps(d_gates), sweep.steps(sweep.before(cells))
            tanh, d_out = sweep.steps(tanhs), sweep.steps(d_outputs)
            state, memory = d_hidden.clone(), d_cell.clone()
            dhs, dcs, parts = sweep.rows(state), sweep.rows(memory), sweep.rows(torch.empty_like(memory))
            d_projected = None if w_hr is None else sweep.zeroed(d_outputs)
            shown = [] if d_projected is None else sweep.steps(d_projected)
            for number, t in enumerate(reversed(sweep.order), start=1):
                # Each line multiplies into what the line before it left, so that nothing is computed twice and
                # everything stays in the cache: o * dh, then its product with the two tanhs, and so on.
                dh, dc, part = dhs[t], dcs[t], parts[t]
                dh += d_out[t]
                dm = dh if w_hr is None else shown[t].copy_(dh) @ w_hr
                dc += torch.mul(dm, o[t], out=part)
                dc.addcmul_(part.mul_(tanh[t]), tanh[t], value=-1)
                torch.addcmul(part, part, o[t], value=-1, out=d_o[t])
                torch.mul(dc, i[t], out=part)
                torch.mul(part, g[t], out=d_i[t])
                torch.addcmul(part, d_i[t], g[t], value=-1, out=d_g[t])
                d_i[t].addcmul_(d_i[t], i[t], value=-1)
                dc *= f[t]
                torch.mul(dc, c[t], out=part)
                torch.addcmul(part, part, f[t], value=-1, out=d_f[t])
                if number < sweep.time or wants_hidden:
                    torch.mm(all_d[t], w_hh, out=dh)
            maps = [(inputs, d_gates), (sweep.before(hiddens), d_gates)]
            if d_projected is not None:
                maps.append((memories, d_projected))
            found, weights, leaf = _finish(ctx, w_ih, maps, ctx.needs_input_grad[3:8])
        return found, state if wants_hidden else None, memory if wants_cell else None, *weights, None, None, leaf


class Gru(torch.autograd.Function):
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
        _no_projection: None,
        sweep: Sweep,
        held: HeldBack | None,
        _: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The recurrence."""
        batch, units = inputs.shape[1], w_hh.shape[1]
        gates = functional.linear(inputs, w_ih, b_ih)
        if b_hh is not None:
            gates[..., : 2 * units] += b_hh[: 2 * units]
        hiddens = sweep.places(hidden, batch, units, gates)
        # What the hidden states add to the candidate, before the reset gate decides how much of it counts.
        shape = (sweep.time, batch, 1)
        recalls = gates.new_zeros(*shape[:2], units) if b_hh is None else b_hh[2 * units :].repeat(shape)
        half = sweep.steps(gates[..., : 2 * units])
        r, z, n = (sweep.steps(part) for part in gates.chunk(3, -1))
        h, new_h = sweep.steps(sweep.before(hiddens)), sweep.steps(sweep.after(hiddens))
        recall = sweep.steps(recalls)
        for number, t in enumerate(sweep.order):
            if number > 0 or hidden is not None:
                half[t].addmm_(h[t], w_hh[: 2 * units].t())
                recall[t].addmm_(h[t], w_hh[2 * units :].t())
            half[t].sigmoid_()
            n[t].addcmul_(r[t], recall[t]).tanh_()
            torch.lerp(n[t], h[t], z[t], out=new_h[t])
        ctx.save_for_backward(inputs, w_ih, w_hh, gates, hiddens, recalls)
        ctx.held, ctx.sweep = held, sweep
        return sweep.after(hiddens).clone(), sweep.last(hiddens)

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor, d_hidden: Tensor) -> tuple[Tensor | None, ...]:
        """The way back through time."""
        refuse_twice("nn.GRU")
        inputs, w_ih, w_hh, gates, hiddens, recalls = ctx.saved_tensors
        wants_hidden = ctx.needs_input_grad[1]
        sweep: Sweep = ctx.sweep
        with torch.autocast(gates.device.type, enabled=False):
            # The candidate's gradient reaches the map of the hidden states through the reset gate; the rest is alike.
            d_ih, d_hh = sweep.zeroed(gates), sweep.zeroed(gates)
            units = w_hh.shape[1]
            r, z, n = (sweep.steps(part) for part in gates.chunk(3, -1))
            d_r, d_z, d_n = (sweep.steps(part) for part in d_ih.chunk(3, -1))
            half_ih, half_hh = sweep.steps(d_ih[..., : 2 * units]), sweep.steps(d_hh[..., : 2 * units])
            d_recall, all_hh = sweep.steps(d_hh[..., 2 * units :]), sweep.steps(d_hh)
            h, recall = sweep.steps(sweep.before(hiddens)), sweep.steps(recalls)
            d_out, state = sweep.steps(d_outputs), d_hidden.clone()
            dhs, news, parts = (sweep.rows(one) for one in (state, torch.empty_like(state), torch.empty_like(state)))
            for number, t in enumerate(reversed(sweep.order), start=1):
                dh, new, part = dhs[t], news[t], parts[t]
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
                if number < sweep.time or wants_hidden:
                    dh.addmm_(all_hh[t], w_hh)
            maps = [(inputs, d_ih), (sweep.before(hiddens), d_hh)]
            found, weights, leaf = _finish(ctx, w_ih, maps, ctx.needs_input_grad[2:7])
        return found, state if wants_hidden else None, *weights, None, None, leaf


class Rnn(torch.autograd.Function):
    """The layer of `nn.RNN`, with either of its nonlinearities."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        hidden: Tensor | None,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None,
        b_hh: Tensor | None,
        _no_projection: None,
        sweep: Sweep,
        held: HeldBack | None,
        _: Tensor | None,
        nonlinearity: str,
    ) -> tuple[Tensor, Tensor]:
        """The recurrence."""
        batch, units = inputs.shape[1], w_hh.shape[1]
        sums = functional.linear(inputs, w_ih, _sum(b_ih, b_hh))
        hiddens = sweep.places(hidden, batch, units, sums)
        a, h, new_h = (sweep.steps(part) for part in (sums, sweep.before(hiddens), sweep.after(hiddens)))
        for number, t in enumerate(sweep.order):
            if number > 0 or hidden is not None:
                a[t].addmm_(h[t], w_hh.t())
            if nonlinearity == "tanh":
                torch.tanh(a[t], out=new_h[t])
            else:
                torch.clamp(a[t], min=0, out=new_h[t])
        ctx.save_for_backward(inputs, w_ih, w_hh, hiddens)
        ctx.held, ctx.sweep, ctx.nonlinearity = held, sweep, nonlinearity
        return sweep.after(hiddens).clone(), sweep.last(hiddens)

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor, d_hidden: Tensor) -> tuple[Tensor | None, ...]:
        """The way back through time."""
        refuse_twice("nn.RNN")
        inputs, w_ih, w_hh, hiddens = ctx.saved_tensors
        wants_hidden = ctx.needs_input_grad[1]
        sweep: Sweep = ctx.sweep
        with torch.autocast(hiddens.device.type, enabled=False):
            d_sums = sweep.zeroed(d_outputs)
            after, state = sweep.after(hiddens), d_hidden.clone()
            # The derivative of the nonlinearity, from what came out of it.
            slopes = 1 - after.square() if ctx.nonlinearity == "tanh" else (after > 0).to(after)
            slope, d_a, d_out, dhs = (*map(sweep.steps, (slopes, d_sums, d_outputs)), sweep.rows(state))
            for number, t in enumerate(reversed(sweep.order), start=1):
                dhs[t].add_(d_out[t])
                torch.mul(dhs[t], slope[t], out=d_a[t])
                if number < sweep.time or wants_hidden:
                    torch.mm(d_a[t], w_hh, out=dhs[t])
            maps = [(inputs, d_sums), (sweep.before(hiddens), d_sums)]
            found, weights, leaf = _finish(ctx, w_ih, maps, ctx.needs_input_grad[2:7])
        return found, state if wants_hidden else None, *weights, None, None, leaf, None


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return None if one is None or other is None else one + other


def _finish(
    ctx: Any, w_ih: Tensor, maps: list[tuple[Tensor, Tensor]], wanted: tuple[bool, ...]
) -> tuple[Tensor | None, list[Tensor | None], Tensor | None]:
    """Show the linear maps. The gradients of the inputs, of the weights that autograd asks for, and of the leaf."""
    (inputs, d_ih), (before, d_hh) = maps[:2]
    flat_ih, flat_hh = d_ih.flatten(0, 1), d_hh.flatten(0, 1)
    weights = [
        flat_ih.t() @ inputs.flatten(0, 1) if wanted[0] else None,
        flat_hh.t() @ before.flatten(0, 1) if wanted[1] else None,
        flat_ih.sum(0) if wanted[2] else None,
        flat_hh.sum(0) if wanted[3] else None,
        maps[2][1].flatten(0, 1).t() @ maps[2][0].flatten(0, 1) if wanted[4] else None,
    ]
    found = (flat_ih @ w_ih).view_as(inputs) if ctx.needs_input_grad[0] else None
    return found, weights, None if ctx.held is None else ctx.held.show(*(part for pair in maps for part in pair))
