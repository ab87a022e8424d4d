"""Noise that generated records are told from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lightning_exposure._checks import choice, whole_number
from lightning_exposure.errors import DataError
from lightning_exposure.synthetic.records._arrays import Records, check_records

_FEWEST = 10
"""So many real records are needed to stand in for noise: some to learn from, and some to ask about."""

Noise = Callable[[Records, int, np.random.Generator], Any]
"""Makes so many records of noise, given the generated ones and a random generator."""


def uniform(generated: Records, count: int, luck: np.random.Generator) -> Records:
    """Every number anywhere between the smallest and the largest one that its feature has in the generated records."""
    low, high = generated.min(0), generated.max(0)
    return np.asarray(low + (high - low) * luck.random((count, *generated.shape[1:])), dtype=generated.dtype)


def normal(generated: Records, count: int, luck: np.random.Generator) -> Records:
    """Normal numbers, of the mean and standard deviation that their feature has in the generated records."""
    numbers = luck.standard_normal((count, *generated.shape[1:]))
    # Squares of huge numbers, and of tiny ones, are none.
    largest = np.maximum(np.abs(generated).max(0), np.finfo(generated.dtype).tiny)
    spread = largest * (generated / largest).std(0)
    return np.asarray(generated.mean(0) + spread * numbers, dtype=generated.dtype)


def shuffled(generated: Records, count: int, luck: np.random.Generator) -> Records:
    """Every number that of the same feature in some generated record, each feature's of another one."""
    flat = generated.reshape(len(generated), -1)
    rows = luck.integers(len(flat), size=(count, flat.shape[1]))
    return flat[rows, np.arange(flat.shape[1])].reshape(count, *generated.shape[1:])


NOISES: dict[str, Noise] = {"uniform": uniform, "normal": normal, "shuffled": shuffled}


class RealRecords:
    """Real records, neither members nor held out, in the place of noise.

    Args:
        records: The records.
    """

    def __init__(self, records: Records) -> None:
        self.records = records

    def __call__(self, generated: Records, count: int, luck: np.random.Generator) -> Records:
        """Draw records; each at most once, as far as they go."""
        places = luck.choice(len(self.records), count, replace=count > len(self.records))
        return self.records[places]

    def split(self, luck: np.random.Generator) -> tuple[RealRecords, RealRecords]:
        """Four fifths to learn from, and the rest."""
        places = luck.permutation(len(self.records))
        rest = len(places) // 5
        return RealRecords(self.records[places[rest:]]), RealRecords(self.records[places[:rest]])


def check_noise(noise: Any) -> Noise:
    """What makes noise, of its name, of records or of a function.

    Raises:
        ArgumentError: There is no noise of that name.
        DataError: These are no records.
    """
    if isinstance(noise, str) or noise is None:
        remedy = (
            "Or give real records that stand in for noise, or a function of generated records, count and generator."
        )
        return NOISES[choice("noise", noise, NOISES, remedy=remedy)]
    return noise if callable(noise) else RealRecords(check_records("noise", noise, at_least=_FEWEST))


def draw_noise(noise: Noise, generated: Records, count: int, luck: np.random.Generator) -> Records:
    """Draw records of noise, and check them.

    Raises:
        DataError: They are not as many as asked for, or not of the shape of the generated ones.
    """
    whole_number("count", count, at_least=1)
    records = check_records("noise", noise(generated, count, luck), like=generated)
    if len(records) != count:
        raise DataError(f"noise has given {len(records)} records; expected {count}. Return as many as it is asked for.")
    return records
