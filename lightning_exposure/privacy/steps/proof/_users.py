"""Was a batch drawn user by user: each as a whole, with as many records as he may have, in one process?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.proof._error import STOPPED
from lightning_exposure.privacy.users.membership import Users


@dataclass(frozen=True)
class UsersOfProcess:
    """The users that one of several processes draws from.

    Attributes:
        users: Of all processes.
        rank: Which process it is.
        world_size: How many there are.
    """

    users: Users
    rank: int = 0
    world_size: int = 1

    @property
    def count(self) -> int:
        """How many they are."""
        return len(range(self.rank, self.users.count, self.world_size))

    def number(self, own: int) -> int:
        """The number of a user of this process among those of all."""
        return self.rank + self.world_size * own

    def check_whole(self, drawn: Sequence[int], members: Sequence[Sequence[int]], groups: Sequence[int] | None) -> None:
        """Refuse a batch in which users are not as a whole, or not as one.

        Args:
            drawn: The users in it, by their numbers in this process.
            members: The records of each that are in it.
            groups: How many examples are clipped together, one user after the other; None: each by itself.

        Raises:
            FitError: A user is in it twice, or with too few or too many records, or belongs to another process; or
                others are clipped together than belong together.
        """
        sizes = [len(records) for records in members]
        if groups is None or list(groups) != sizes or len(sizes) != len(drawn):
            raise FitError(
                f"A batch of {len(drawn)} users is clipped as {'single records' if groups is None else len(groups)}: "
                f"what is clipped together is not what a user has in it. {STOPPED}"
            )
        if len(set(drawn)) != len(drawn):
            raise FitError(f"A user is in the same batch twice. {STOPPED}")
        for own, records in zip(drawn, members, strict=True):
            user = self.number(own)
            if any(self.users.of_record[record] != user for record in records):
                raise FitError(f"A batch has records of a user of another process, or of nobody. {STOPPED}")
            expected = self.users.size_of(user)
            if len(set(records)) != len(records) or len(records) != expected:
                raise FitError(
                    f"A user is in a batch with {len(set(records))} records; expected {expected}, which are all he has "
                    f"or max_records_per_user={self.users.most}. A user must not be split over batches, nor have more. "
                    f"{STOPPED}"
                )

    def check_draw(self, members: Sequence[Sequence[int]], state: torch.Tensor, *, sample_rate: float) -> None:
        """Draw a batch again, and refuse another one.

        Args:
            members: The records of each user in the batch.
            state: Of the private generator, before it was drawn.
            sample_rate: The rate that the accountant was told.

        Raises:
            FitError: It has other users, or other records of theirs.
        """
        generator = torch.Generator()
        generator.set_state(state)
        coins = torch.rand(self.count, generator=generator, dtype=torch.float64)
        expected = []
        for own in (coins < sample_rate).nonzero().flatten().tolist():
            records = self.users.records_of(self.number(own))
            if len(records) > self.users.most:
                places = torch.randperm(len(records), generator=generator)[: self.users.most]
                records = [records[place] for place in sorted(places.tolist())]
            expected.append(records)
        if sorted(map(sorted, members)) != sorted(expected):
            raise FitError(
                "The batches are not drawn by Poisson sampling of users: the coins of the private generator give a "
                f"batch of {len(expected)} users; this one has {len(members)}, or others, or other records of theirs. "
                f"{STOPPED}"
            )
