"""What is saved beside the weights: buffers, extra state, hyperparameters. No noise hides what they say of the data.

That something changes while a model trains is no fault: steps are counted, temperatures fall. What matters is whether
the data have a say in it. So what has changed is looked at more closely: the batch is repeated, by a copy of the
module, with other data and with fewer of them; what then comes out different has seen the data.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.fingerprints import content
from lightning_exposure.privacy.steps.watching import STOPPED

Outcome = Mapping[str, int]
"""The content of everything that is saved, by name."""

Repeat = Callable[[Sequence[str]], tuple[Outcome, Sequence[Outcome]]]
"""Repeats a batch with different data. Given names, it begins with other values there, and repeats the end of the epoch
too. Returns what is saved before, and afterwards for each of the data."""

HOOK = "checkpoint."
"""What the names of things begin with that the module's `on_save_checkpoint` adds."""
END_OF_EPOCH = "the end of an epoch"
"""In the place of a name: repeats it too."""

_SMALL = 4096
_ONE = 1  # by how much what counts steps goes up


def saved_values(module: nn.Module) -> dict[str, Any]:
    """What a checkpoint holds of a module beside its parameters, by name.

    Example:
        >>> list(saved_values(nn.BatchNorm1d(2)))
        ['running_mean', 'running_var', 'num_batches_tracked']
    """
    parameters = {id(value) for value in module.parameters()}
    values = {name: value for name, value in _state_dict(module).items() if id(value) not in parameters}
    hyperparameters = getattr(module, "hparams", None)
    if isinstance(hyperparameters, Mapping):
        values |= {f"hyper_parameters.{name}": value for name, value in hyperparameters.items()}
    return values


def contents(values: Mapping[str, Any]) -> dict[str, int]:
    """The contents of some values, by name."""
    return {name: content(value) for name, value in values.items()}


def perturb(module: nn.Module, names: Iterable[str]) -> None:
    """Give saved tensors other values in place, to see whether something writes to them."""
    values = saved_values(module)
    for name in names:
        value = values.get(name)
        if isinstance(value, Tensor):
            with torch.no_grad():
                value.copy_(~value if value.dtype == torch.bool else value + 1)


class SavedState:
    """Watches over what is saved beside the weights.

    Args:
        module: What is trained.
        exempt: Names of what the user vouches for.
        hooked: Whether the module puts something into checkpoints itself, of which repetitions tell.
        seed: Of the random choice of when to look again at what was found to be harmless.
    """

    def __init__(self, module: nn.Module, *, exempt: Iterable[str] = (), hooked: bool = False, seed: int = 0) -> None:
        self._module, self._exempt, self._hooked = module, set(exempt), hooked
        self._chance = random.Random(seed)
        self._looks = self._due = 0
        self._vetted: set[str] = set()
        self._moves: dict[str, Any] = {}  # by how much a whole number goes up
        self._beats: Counter[str] = Counter()  # how often it did so by one
        self._counters: set[str] = set()  # those that nothing is known of but that
        self._epochs = 0
        self._hook_values: Outcome = {}
        values = saved_values(module)
        self._before = contents(values)
        self._counts = _whole_numbers(values)

    def look(self, repeat: Repeat, *, last: bool = False, epoch: bool = False) -> None:
        """Refuse what has changed since the last look, if the data have a say in it.

        Args:
            repeat: Called only if something has changed that was not looked at closely yet, or that moved otherwise
                than before; and now and then again.
            last: There will be no later look.
            epoch: An epoch has ended since the last one.

        Raises:
            FitError: Names it.
        """
        values = saved_values(self._module)
        now, counts = contents(values), _whole_numbers(values)
        changed = [name for name in {**self._before, **now} if self._before.get(name) != now.get(name)]
        counted = [name for name in changed if name in counts and name in self._counts]
        moves = {name: _move(self._counts[name], counts[name]) for name in counted}
        fresh = [
            name
            for name in changed
            if name not in self._exempt and (name not in self._vetted or moves.get(name) != self._moves.get(name))
        ]
        self._before, self._counts, self._looks = now, counts, self._looks + 1
        self._epochs += epoch or last
        self._beats.update(name for name, move in moves.items() if move == _ONE)
        again = (self._vetted or self._hooked) and (last or self._looks >= self._due)
        if fresh or again:
            self._vet(fresh, repeat, moves)
            # Ever more rarely, but when nobody knows.
            self._due = self._looks + self._chance.randint(1, 2 * self._looks)
        self._refuse_unclear([name for name in self._counters if not self._is_regular(name)])
        self._moves = {**moves, **self._moves}

    def _is_regular(self, name: str) -> bool:
        """Whether something has gone up by one with every step so far, or with every epoch and at no other time."""
        return self._beats[name] in (self._looks, self._epochs)

    def _vet(self, fresh: list[str], repeat: Repeat, moves: Mapping[str, Any]) -> None:
        before, outcomes = repeat(())
        self._refuse_different(outcomes)
        left = _untouched(fresh, before, outcomes)
        if left:
            before, outcomes = repeat(left)
            self._refuse_different(outcomes)
            left = _untouched(left, before, outcomes)
        # No batch writes to these; but somebody does, once in a while or in another hook.
        self._refuse_unclear([name for name in left if moves.get(name) != _ONE or not self._is_regular(name)])
        self._counters |= set(left)
        self._vetted |= set(fresh)
        if self._hooked:
            self._vet_hook(repeat)

    def _vet_hook(self, repeat: Repeat) -> None:
        """What the module's own hook saves: it may be what is left of many batches, at the end of an epoch."""
        before, outcomes = repeat((END_OF_EPOCH,))
        self._refuse_different(outcomes)
        values = {name: value for name, value in before.items() if name.startswith(HOOK) and name not in self._exempt}
        known = self._hook_values
        changed = [name for name, value in values.items() if name in known and known[name] != value]
        self._refuse_unclear(_untouched(changed, before, outcomes))
        self._hook_values = values

    def _refuse_unclear(self, names: Sequence[str]) -> None:
        if names:
            raise FitError(
                f"{_listed(names)}: is saved with the weights, and changed while it trained; it could not be shown "
                f"that the data have no part in it. {STOPPED} {_REMEDY}"
            )

    def _refuse_different(self, outcomes: Sequence[Outcome]) -> None:
        names = dict.fromkeys(name for outcome in outcomes for name in outcome if name not in self._exempt)
        refuse_different(names, outcomes)


def _untouched(names: Sequence[str], before: Outcome, outcomes: Sequence[Outcome]) -> list[str]:
    """What no repetition has written to; everything, if there is nothing to compare."""
    if len(outcomes) < 2:
        return list(names)
    return [name for name in names if all(outcome.get(name) == before.get(name) for outcome in outcomes)]


def refuse_different(names: Iterable[str], outcomes: Sequence[Outcome]) -> None:
    """Refuse what differs when the data do.

    Args:
        names: What to look at.
        outcomes: What is saved after a batch, for different data.

    Raises:
        FitError: Names it.
    """
    different = [name for name in names if len({outcome.get(name) for outcome in outcomes}) > 1]
    if different:
        raise FitError(
            f"{_listed(different)}: buffers that a batch has changed, or other state, that depend on what is in the "
            "batch or on how many examples there are, with neither clipping nor noise, and that are saved with the "
            f"weights, such as running means of activations. {STOPPED} {_REMEDY}"
        )


_REMEDY = (
    "Remove it; or keep it out of checkpoints, by register_buffer(..., persistent=False); or, if it does not depend on "
    'the training data, vouch for it by its name: DifferentialPrivacy(post_processing=["name"]).'
)


def _state_dict(module: nn.Module) -> Mapping[str, Any]:
    try:
        return module.state_dict(keep_vars=True)
    except TypeError:  # of the user's own, without options
        return module.state_dict()


def _whole_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of those that count something."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Tensor) and value.numel() <= _SMALL and not value.is_floating_point():
            if value.dtype != torch.bool and not value.is_complex():
                found[name] = value.detach().cpu().clone()
        elif isinstance(value, int) and not isinstance(value, bool):
            found[name] = value
    return found


def _move(before: Any, now: Any) -> Any:
    """By how much a count went up; something that is equal to no number if not by the same everywhere."""
    if isinstance(before, Tensor) and isinstance(now, Tensor) and before.shape == now.shape:
        moves: list[int] = sorted(set((now - before).flatten().tolist()))
        return moves[0] if len(moves) == 1 else content(now - before).to_bytes(8, "little")
    return now - before if isinstance(before, int) and isinstance(now, int) else None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
