"""Did the weights move as the user's own optimizer moves them along the private gradient, and not otherwise?"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.proof._error import STOPPED
from lightning_exposure.privacy.steps.proof.coordinates import Coordinates

_BY_NUMBER = frozenset(
    {
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.Rprop,
        torch.optim.ASGD,
    }
)
"""The optimizers that move every number by itself, so that the steps of some numbers can be made without the others."""


def weights_of(module: nn.Module, coordinates: Coordinates | None = None) -> dict[str, Tensor]:
    """Numbers of a module's parameters, frozen ones too, by name; without coordinates all of them."""
    chosen = _chosen(module, coordinates)
    return {name: chosen.of_one(name, value) for name, value in module.named_parameters()}


class Snapshot:
    """Weights of a module and the state of its optimizer right before a step; it can make the step again.

    Args:
        module: What is trained.
        optimizer: The user's own optimizer.
        weights: The weights when the batch began, since when nothing may have changed them.
        coordinates: Which numbers of them; None: all.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        weights: dict[str, Tensor],
        coordinates: Coordinates | None = None,
    ) -> None:
        self._coordinates = _chosen(module, coordinates)
        self._names = {value: name for name, value in module.named_parameters()}
        self._before = weights
        self._samples = type(optimizer) in _BY_NUMBER
        self._optimizer, self._twins = self._copied(optimizer)
        early = [name for name, value in module.named_parameters() if not self._is_at(name, value, None)]
        if early:
            raise FitError(_elsewhere(early, " moved before the step"))

    def gradients(self, optimizer: Optimizer) -> dict[nn.Parameter, Tensor]:
        """What has to be known of the gradients along which an optimizer steps: a copy."""
        parameters = [value for group in optimizer.param_groups for value in group["params"]]
        return {value: self._part(value, value.grad) for value in parameters if value.grad is not None}

    def replayed(self, gradients: Mapping[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
        """The numbers that the optimizer comes to along some gradients."""
        optimizer, twins = _twin(self._optimizer, _whole)
        found = {original: twins[twin] for original, twin in self._twins.items()}
        for original, twin in found.items():
            gradient = gradients.get(original)
            if gradient is not None:
                known = gradient if gradient.shape == twin.shape else self._part(original, gradient)
                twin.grad = known.detach().clone()
        # Schedulers put a counting function in the place of an instance's step.
        type(optimizer).step(optimizer)
        return {original: self._numbers(original, twin) for original, twin in found.items()}

    def check(
        self,
        module: nn.Module,
        gradients: Mapping[nn.Parameter, Tensor],
        without_noise: Mapping[nn.Parameter, Tensor],
        *,
        scale: float = 1.0,
    ) -> None:
        """Refuse weights that are elsewhere than the optimizer brings them along the private gradients.

        Args:
            module: What is trained, after the step.
            gradients: The private gradients.
            without_noise: The same without noise, to tell what went wrong.
            scale: What the latter is still to be divided by.

        Raises:
            FitError: Names the parameters that are elsewhere.
        """
        parameters = dict(module.named_parameters())
        expected = self.replayed(gradients)
        wrong = [name for name, value in parameters.items() if not self._is_at(name, value, expected.get(value))]
        if not wrong:
            return
        plain = self.replayed({value: total / scale for value, total in without_noise.items()})
        noiseless = all(self._is_at(name, parameters[name], plain.get(parameters[name])) for name in wrong)
        raise FitError(_elsewhere(wrong, " moved as if there were no noise" if noiseless else ""))

    def _is_at(self, name: str, now: Tensor, expected: Tensor | None) -> bool:
        before, there = self._before[name], self._coordinates.of_one(name, now)
        place = before if expected is None else expected
        # Zero where nothing may move. The same arithmetic gives the same numbers, but for its order.
        step = float((place - before).abs().nan_to_num().max()) if before.numel() else 0.0
        rounding = 2 * torch.finfo(before.dtype).eps if step else 0.0
        return torch.allclose(there, place, rtol=rounding, atol=1e-5 * step, equal_nan=True)

    def _copied(self, optimizer: Optimizer) -> tuple[Optimizer, dict[nn.Parameter, nn.Parameter]]:
        return _twin(optimizer, self._part if self._samples else _whole)

    def _part(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """What is kept of a tensor that has the shape of a parameter."""
        name = self._names.get(parameter)
        if name is None or not self._samples or self._coordinates.are_all(name):
            return _whole(parameter, value)
        return self._coordinates.of_one(name, value)

    def _numbers(self, original: nn.Parameter, twin: nn.Parameter) -> Tensor:
        """The numbers that are compared, of what has become of a parameter's twin."""
        name = self._names.get(original)
        if name is None or twin.shape != original.shape:
            return twin.detach()
        return self._coordinates.of_one(name, twin)


def _chosen(module: nn.Module, coordinates: Coordinates | None) -> Coordinates:
    if coordinates is not None:
        return coordinates
    parameters = dict(module.named_parameters())
    return Coordinates(parameters, limit=sum(value.numel() for value in parameters.values()))


def _elsewhere(names: Sequence[str], how: str) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (
        f"The weights moved otherwise than a private step moves them: {', '.join(names[:5])}{more}{how}. Something "
        "else than the private optimizer changes them, such as an optimizer_step of the module's own or another "
        f"callback. {STOPPED} If the change needs no data, verify_steps=0 leaves this proof out."
    )


def _whole(parameter: nn.Parameter, value: Tensor) -> Tensor:
    return value.detach().clone()


def _twin(optimizer: Optimizer, part: Any) -> tuple[Optimizer, dict[nn.Parameter, nn.Parameter]]:
    """An optimizer of its own with parameters of its own, and whose place each of them takes.

    Args:
        optimizer: What to copy.
        part: Takes a parameter and a tensor of its shape, and gives what is kept of that.
    """
    # An optimizer's own way to be copied forgets what a subclass has added to it; and hooks stay with the original.
    memo: dict[int, Any] = {}
    twins: dict[nn.Parameter, nn.Parameter] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            twins[parameter] = memo[id(parameter)] = nn.Parameter(
                part(parameter, parameter), requires_grad=parameter.requires_grad
            )
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.dim() and value.shape == parameter.shape:
                    memo[id(value)] = part(parameter, value)
    apart = {"step"} | {name for name in vars(optimizer) if name.endswith("_hooks")}
    made = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        if name not in apart:
            vars(made)[name] = copy.deepcopy(value, memo)
        elif name != "step":
            vars(made)[name] = OrderedDict()
    return made, twins
