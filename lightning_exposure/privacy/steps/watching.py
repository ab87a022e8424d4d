"""`Watch`: sees whatever moves the weights, or what the optimizer remembers, between two private steps.

A private step is proven to be private; but between two of them a training run has many hooks, of the module and of
other callbacks, and any of them can write to the weights. So the weights after a step must be those before the next
one, bit for bit. What only works on the weights (an average of them, a largest norm) takes nothing from the data, and
can be allowed by name.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_exposure._torch import writes_to
from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.fingerprints import content, fingerprints

STOPPED = "The training was stopped, because it would not have been private."

_ALWAYS = 2**22
"""So many numbers of an optimizer's state are compared in every step. Of a larger one, every tensor is in one step of
four, by chance: the state of Adam is twice as large as the weights."""

BETWEEN = " moved between two batches"
SINCE = " moved after the last private step"
BEFORE = " moved before the step"


class Watch:
    """Compares the weights, frozen ones too, and the state of the optimizers with what they were when last settled.

    Args:
        module: What is trained.
        optimizer: The user's own optimizer, of which the private one is made.
        others: Further ones, which train other parts of the module without privacy.

    Attributes:
        settled: What the optimizers were set to when last settled, group by group.
    """

    settled: list[dict[str, Any]]

    def __init__(self, module: nn.Module, optimizer: Optimizer, *others: Optimizer) -> None:
        self._module, self._optimizers = module, (optimizer, *others)
        # Not asked again later: whoever trains with several optimizers freezes the weights of the others meanwhile.
        self._trained = {
            id(each): {id(value) for value in _held(each) if value.requires_grad} for each in self._optimizers
        }
        self._allowed = 0
        self._weights: dict[str, Hashable] = {}
        self._state: dict[str, Hashable] = {}
        self._groups, self.settled = 0, []
        self._chance = random.Random()
        self._chosen: set[str] = set()
        self._quick: tuple[Any, ...] = ()
        self.settle()

    def settle(self) -> None:
        """Take things as they are now."""
        self._weights = fingerprints(dict(self._module.named_parameters()))
        self._settle_optimizer()

    def settle_step(self, optimizer: Optimizer | None = None) -> None:
        """Take as it is now what a step may change; not the frozen weights, nor those of other optimizers.

        Args:
            optimizer: Who has made the step; None: the private one.
        """
        mine = self._trained[id(self._optimizers[0] if optimizer is None else optimizer)]
        trained = {name: value for name, value in self._module.named_parameters() if id(value) in mine}
        self._weights = self._weights | fingerprints(trained)
        self._settle_optimizer()

    def _settle_optimizer(self) -> None:
        remembered = dict(self._remembered())
        few = sum(value.numel() for value in remembered.values()) <= _ALWAYS
        self._chosen = {name for name in remembered if few or self._chance.random() < 0.25}
        self._state = self._compared(remembered)
        self.settle_groups()
        self._quick = self._versions()

    def check(self, where: str = SINCE, *, quick: bool = False) -> None:
        """Refuse weights, or a state of the optimizer, that are not what they were.

        Args:
            where: When it happened, to say it.
            quick: Of many frozen weights, compare one in eight, by chance. They are compared with what they were at
                the beginning, so that a change is seen in one of the next steps, and at the latest when the weights are
                saved.

        Raises:
            FitError: Names what has moved, and how to allow it.
        """
        if self._allowed:
            return
        weights = dict(self._module.named_parameters())
        left = self._left_out(weights) if quick else set()
        compared = fingerprints({name: value for name, value in weights.items() if name not in left})
        now = {name: self._weights.get(name) for name in left} | compared
        self._refuse(self._weights, now, "The weights", where)
        state = self._compared(dict(self._remembered()))
        self._refuse(self._state, state, "What the optimizer remembers", where)

    def glance(self, where: str) -> None:
        """The same, but only if PyTorch has counted a change; to tell sooner when it happened. Costs next to nothing.

        PyTorch's count alone would not do: whoever writes to `tensor.data` is not counted.
        """
        if not self._allowed and self._versions() != self._quick:
            self.check(where)
            self._quick = self._versions()

    def is_settled(self) -> bool:
        """Whether the weights are what they were."""
        return self._weights == fingerprints(dict(self._module.named_parameters()))

    @property
    def allows(self) -> bool:
        """Whether anything may move just now."""
        return self._allowed > 0

    @contextmanager
    def allowing(self) -> Iterator[None]:
        """Inside, anything may move; before it, nothing may have."""
        self.check()
        self._allowed += 1
        try:
            yield
        finally:
            self._allowed -= 1
            self.settle()

    # ---- learning rates and the like ------------------------------------------------------------------------------

    def settle_groups(self) -> None:
        """Take the settings of the optimizer as they are now."""
        self._groups, self.settled = content(self._settings()), copy.deepcopy(self._settings())

    def is_set(self) -> bool:
        """Whether the settings of the optimizer are what they were."""
        return content(self._settings()) == self._groups

    def check_groups(self) -> None:
        """Refuse settings of the optimizer that are not what they were.

        Raises:
            FitError: Something else than a schedule has set them.
        """
        if not self._allowed and not self.is_set():
            raise FitError(
                "The settings of the optimizer, such as its learning rate, were changed by something else than a "
                "learning rate schedule of configure_optimizers or the module's optimizer_step; or by that one, when "
                "it had seen the loss, and otherwise than it would have without. If they follow the "
                f"training data, so do the weights, without noise. {STOPPED} {_remedy('data')}"
            )

    def _settings(self) -> list[dict[str, Any]]:
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return [{key: group[key] for key in sorted(group) if key != "params"} for group in groups]

    # ---- parts ----------------------------------------------------------------------------------------------------

    def _remembered(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors in the optimizers' states, by name."""
        names: dict[Any, str] = {value: name for name, value in self._module.named_parameters()}
        states = (item for optimizer in self._optimizers for item in optimizer.state.items())
        for place, (parameter, state) in enumerate(states):
            name = names.get(parameter, str(place)) if isinstance(parameter, Tensor) else str(parameter)
            if isinstance(state, dict):
                for key, value in state.items():
                    if isinstance(value, Tensor):
                        yield f"{key} of {name}", value

    def _left_out(self, weights: dict[str, nn.Parameter]) -> set[str]:
        trained = set().union(*self._trained.values())
        frozen = {name: value for name, value in weights.items() if id(value) not in trained}
        if sum(value.numel() for value in frozen.values()) <= _ALWAYS:
            return set()
        return {name for name in frozen if self._chance.random() > 1 / 8}

    def _compared(self, remembered: dict[str, Tensor]) -> dict[str, Hashable]:
        """Of what was not chosen, only whether it is the same tensor, and PyTorch has counted no change."""
        counted: dict[str, Hashable] = {name: (id(value), writes_to(value)) for name, value in remembered.items()}
        return counted | fingerprints({name: value for name, value in remembered.items() if name in self._chosen})

    def _versions(self) -> tuple[Any, ...]:
        parameters = [(id(value), writes_to(value)) for value in self._module.parameters()]
        return tuple(parameters), tuple((id(value), writes_to(value)) for _, value in self._remembered())

    def _refuse(self, before: dict[str, Hashable], now: dict[str, Hashable], what: str, where: str) -> None:
        if before == now:
            return
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        raise FitError(
            f"{what} moved otherwise than a private step moves them: {_listed(changed)}{where}. Something else than "
            "the private optimizer changes them, such as a hook of the module or of another callback. "
            f"{STOPPED} {_remedy('weights')}"
        )


def _held(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    return (value for group in optimizer.param_groups for value in group["params"])


def _remedy(what: str) -> str:
    if what == "data":
        return (
            "If they do not, name the callback or the hook that sets them: "
            'DifferentialPrivacy(post_processing=["WarmUp"]).'
        )
    return (
        "If the change is made of the weights alone, as an average of them or a largest norm is, name the callback or "
        'the module\'s hook that makes it: DifferentialPrivacy(post_processing=["MaxNorm", "on_train_batch_end"]).'
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
