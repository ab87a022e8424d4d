"""Proof that a step was private: what it did to the weights, beside what a private step does.

Whether a training is private cannot be seen from its results. Something between the private optimizer and the weights
can take the privacy away without any sign: a hook, a second optimizer, a generator that gives zeros. So the first steps
of a training are looked at: examples were clipped, noise of the right size came on top, and the weights moved exactly
as the user's own optimizer moves them along that gradient.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_exposure.errors import FitError

FALSE_ALARM = 1e-9
"""How likely a private step is refused by mistake."""

_ROUNDING = 64
"""By how many units in the last place of its parts a sum of a few numbers may be off."""


def check_clipping(sums: Iterable[Tensor], norms: Tensor, *, examples: int, max_grad_norm: float) -> None:
    """Refuse a sum of gradients that is longer than those of clipped examples can add up to.

    Args:
        sums: The parts of the sum, one for each parameter.
        norms: The norm of each example's gradient before clipping.
        examples: How many examples the batch has.
        max_grad_norm: What each of them was clipped to.

    Raises:
        FitError: It is longer.
    """
    length = float(torch.stack([part.double().square().sum() for part in sums]).sum().sqrt())
    possible = float(norms.double().clamp(max=max_grad_norm).sum()) if examples else 0.0
    if examples and len(norms) != examples:
        raise FitError(f"The step clipped {len(norms)} gradients of {examples} examples. {_STOPPED}")
    if not length <= possible * (1 + 1e-4) + 1e-12:
        raise FitError(
            f"The step was not clipped: the gradients of {examples} examples, each of a norm of at most "
            f"max_grad_norm={max_grad_norm:g}, add up to a norm of at most {possible:.4g}; it was {length:.4g}. "
            f"{_STOPPED}"
        )


def noise_limits(count: int, alarm: float) -> tuple[float, float]:
    """Between which limits the sum of squares of standard normal numbers is, but for a small probability.

    Args:
        count: How many numbers there are.
        alarm: That probability.

    Example:
        >>> low, high = noise_limits(1000, 1e-9)
        >>> 700 < low < 1000 < high < 1350
        True
    """
    return float(stats.chi2.ppf(alarm / 2, count)), float(stats.chi2.isf(alarm / 2, count))


def check_noise(sums: Sequence[Tensor], gradients: Sequence[Tensor], *, scale: float, deviation: float) -> None:
    """Refuse a step whose gradient is not the clipped sum with noise of the right size.

    Every parameter is looked at by itself, and all of them together.

    Args:
        sums: The clipped sum of each parameter.
        gradients: What the optimizer stepped along.
        scale: What the noisy sum was divided by.
        deviation: The standard deviation that the noise has.

    Raises:
        FitError: The noise is too small, too large, or something else than noise.
    """
    squares, errors, counts = [], [], []
    for total, gradient in zip(sums, gradients, strict=True):
        noisy = gradient.double() * scale
        unit = _ROUNDING * torch.finfo(gradient.dtype).eps
        squares.append(float((noisy - total.double()).square().sum()))
        errors.append(float((unit * (noisy.abs() + total.double().abs())).square().sum()))
        counts.append(total.numel())
    alarm = FALSE_ALARM / (len(counts) + 1)
    parts = [*zip(squares, errors, counts, strict=True), (sum(squares), sum(errors), sum(counts))]
    for square, error, count in parts:
        low, high = noise_limits(count, alarm) if count else (0.0, 0.0)
        # What is below the precision of the numbers can neither be seen nor held against a step.
        if not low * deviation**2 - 2 * error <= square * 1.01 or not square <= 1.01 * high * deviation**2 + 2 * error:
            raise FitError(
                f"The step's noise is not the one that was asked for: over {count} numbers its standard deviation is "
                f"{(square / count) ** 0.5:.4g}; expected noise_multiplier * max_grad_norm = {deviation:.4g}. "
                f"Something changed the gradient or the noise. {_STOPPED}"
            )


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """A copy of a module's parameters, by name."""
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def check_buffers(before: Mapping[str, Tensor], module: nn.Module) -> None:
    """Refuse buffers that a batch has changed: they are in every checkpoint, and nothing hides what they hold.

    Args:
        before: The buffers when the batch began, by name; counters are not among them.
        module: What is trained, after the batch.

    Raises:
        FitError: Names them.
    """
    changed = [name for name, value in buffers_of(module).items() if not _same(before.get(name), value)]
    if changed:
        raise FitError(
            f"{', '.join(map(repr, changed[:5]))}: buffers that a batch has changed, with neither clipping nor noise, "
            f"and that are saved with the weights, such as running means of activations. {_STOPPED} Remove them, or "
            "register them with persistent=False and reset them."
        )


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """A copy of a module's buffers that a checkpoint holds, by name; whole numbers, which count steps, are left out."""
    kept = module.state_dict(keep_vars=True)
    return {
        name: value.detach().clone()
        for name, value in module.named_buffers()
        if name in kept and value.is_floating_point()
    }


def _same(before: Tensor | None, now: Tensor) -> bool:
    return before is not None and before.shape == now.shape and torch.equal(before, now)


class Snapshot:
    """The weights of a module and the state of its optimizer right before a step; it can make the step again.

    Args:
        module: What is trained.
        optimizer: The user's own optimizer.
        weights: The weights when the batch began, since when nothing may have changed them.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer, weights: dict[str, Tensor]) -> None:
        self._before = weights
        self._optimizer, self._twins = _copied(optimizer)
        early = [name for name, value in module.named_parameters() if not self._is_at(name, value, None)]
        if early:
            raise FitError(_elsewhere(early, " moved before the step"))

    def replayed(self, gradients: Mapping[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
        """The weights that the optimizer comes to along some gradients."""
        optimizer, twins = _copied(self._optimizer)
        found = {original: twins[twin] for original, twin in self._twins.items()}
        for original, twin in found.items():
            gradient = gradients.get(original)
            twin.grad = None if gradient is None else gradient.detach().clone()
        # Schedulers put a counting function in the place of an instance's step.
        type(optimizer).step(optimizer)
        return {original: twin.detach() for original, twin in found.items()}

    def check(
        self, module: nn.Module, gradients: Mapping[nn.Parameter, Tensor], without_noise: Mapping[nn.Parameter, Tensor]
    ) -> None:
        """Refuse weights that are elsewhere than the optimizer brings them along the private gradients.

        Args:
            module: What is trained, after the step.
            gradients: The private gradients.
            without_noise: The same without noise, to tell what went wrong.

        Raises:
            FitError: Names the parameters that are elsewhere.
        """
        parameters = dict(module.named_parameters())
        expected = self.replayed(gradients)
        wrong = [name for name, value in parameters.items() if not self._is_at(name, value, expected.get(value))]
        if not wrong:
            return
        plain = self.replayed(without_noise)
        noiseless = all(self._is_at(name, parameters[name], plain.get(parameters[name])) for name in wrong)
        raise FitError(_elsewhere(wrong, " moved as if there were no noise" if noiseless else ""))

    def _is_at(self, name: str, now: Tensor, expected: Tensor | None) -> bool:
        before = self._before[name]
        place = before if expected is None else expected
        step = float((place - before).abs().nan_to_num().max()) if before.numel() else 0.0
        return torch.allclose(now.detach(), place, rtol=1e-6, atol=1e-3 * step, equal_nan=True)


_STOPPED = "The training was stopped, because it would not have been private."


def _elsewhere(names: Sequence[str], how: str) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (
        f"The weights moved otherwise than a private step moves them: {', '.join(names[:5])}{more}{how}. Something "
        "else than the private optimizer changes them, such as an optimizer_step of the module's own or another "
        f"callback. {_STOPPED} If the change needs no data, verify_steps=0 leaves this proof out."
    )


def _copied(optimizer: Optimizer) -> tuple[Optimizer, dict[nn.Parameter, nn.Parameter]]:
    """An optimizer of its own with parameters of its own, and whose place each of them takes."""
    # An optimizer's own way to be copied forgets what a subclass has added to it; and hooks stay with the original.
    memo: dict[int, Any] = {}
    apart = {"step"} | {name for name in vars(optimizer) if name.endswith("_hooks")}
    twin = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        if name not in apart:
            vars(twin)[name] = copy.deepcopy(value, memo)
        elif name != "step":
            vars(twin)[name] = OrderedDict()
    originals = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return twin, {parameter: memo[id(parameter)] for parameter in originals}
