"""`Ledger`: how often each canary was really fetched, epoch by epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch.distributed

from lightning_exposure._checks import refusal


class Ledger:
    """Counts the canaries that came out of the training loader of this process.

    Example:
        >>> ledger = Ledger(["pin-1x", "pin-2x"])
        >>> ledger.add(0, ["pin-2x", "pin-1x", "pin-2x"])
        >>> ledger[0]
        {'pin-1x': 1, 'pin-2x': 2}
        >>> ledger.total
        {'pin-1x': 1, 'pin-2x': 2}
    """

    def __init__(self, ids: Iterable[str]) -> None:
        """Start with nothing counted for some canaries."""
        self._ids = tuple(ids)
        self._epochs: dict[int, Counter[str]] = {}

    @property
    def epochs(self) -> list[int]:
        """The epochs in which a batch was fetched, in order."""
        return sorted(self._epochs)

    @property
    def total(self) -> dict[str, int]:
        """How often each canary was fetched, over all epochs."""
        return {id_: sum(counts[id_] for counts in self._epochs.values()) for id_ in self._ids}

    def __getitem__(self, epoch: int, /) -> dict[str, int]:
        """How often each canary was fetched in an epoch."""
        counts = self._epochs.get(epoch, Counter())
        return {id_: counts[id_] for id_ in self._ids}

    def __eq__(self, other: object) -> bool:
        """Equal if they count the same."""
        return self.state_dict() == other.state_dict() if isinstance(other, Ledger) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # a ledger changes

    def __repr__(self) -> str:
        """Show the counts of each epoch."""
        return f"Ledger({ {epoch: self[epoch] for epoch in self.epochs} })"

    def add(self, epoch: int, ids: Iterable[str]) -> None:
        """Count some canaries in an epoch; none at all still marks the epoch as begun."""
        self._epochs.setdefault(epoch, Counter()).update(ids)

    def without(self, taken_back: Iterable[tuple[int, Iterable[str]]]) -> Ledger:
        """A copy that does not count some canaries of some epochs."""
        copy = Ledger(self._ids)
        copy.load_state_dict(self.state_dict())
        for epoch, ids in taken_back:
            copy._epochs.setdefault(epoch, Counter()).subtract(ids)
        return copy

    def gather(self) -> Ledger:
        """The counts of all processes together; the same as this one if there is only one process.

        With several processes every one of them has to call this, as with any collective operation.
        """
        parts = [self.state_dict()]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            parts = [{} for _ in range(torch.distributed.get_world_size())]
            torch.distributed.all_gather_object(parts, self.state_dict())
        together = Ledger(self._ids)
        for part in parts:
            for epoch, counts in part.items():
                together.add(int(epoch), Counter(counts).elements())
        return together

    def state_dict(self) -> dict[str, dict[str, int]]:
        """Everything, as plain types."""
        return {str(epoch): self[epoch] for epoch in self.epochs}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the counts by those of a `state_dict`.

        Raises:
            ArgumentError: It counts a canary that this ledger does not know.
        """
        strangers = sorted({id_ for counts in state.values() for id_ in counts} - set(self._ids))
        if strangers:
            remedy = "It counts canaries of another experiment: resume with those that the training run began with."
            raise refusal("state", strangers, f"counts of {list(self._ids)}", remedy)
        self._epochs = {int(epoch): Counter(counts) for epoch, counts in state.items()}
