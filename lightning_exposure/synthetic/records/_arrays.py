"""Records and labels as arrays, checked before anything is trained on them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_exposure._checks import refusal
from lightning_exposure.errors import DataError
from lightning_exposure.synthetic.records._shares import share_difference

_SURE = 0.999
"""With this confidence more records are equal than by chance, before they are refused."""
_WHOLE = 2**53
"""Beyond this, not every whole number is a number of double precision."""

Records = NDArray[np.float64]
Labels = NDArray[np.int64]


def as_array(value: Any) -> NDArray[Any]:
    """An array of a list, an array or a tensor on any device."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if value.is_floating_point():
            value = value.float() if value.element_size() < 4 else value  # NumPy has no bfloat16
    return np.asarray(value)


def check_records(name: str, value: Any, *, like: Records | None = None, at_least: int = 1) -> Records:
    """Records of numbers, one after the other along the first dimension.

    Args:
        name: The argument.
        value: An array or tensor.
        like: Records that have to be of the same shape.
        at_least: How many there have to be.

    Raises:
        DataError: They are something else.
    """
    try:
        found = as_array(value)
        if found.dtype.kind not in "buif":
            raise ValueError
        records = found.astype(np.float64) + 0.0  # 0 and -0 are one number
    except (TypeError, ValueError):
        raise refusal(
            name, value, "an array or tensor of numbers", "Make numbers of everything else first.", error=DataError
        ) from None
    if records.ndim < 2 or len(records) < at_least or not records[0].size:
        raise DataError(
            f"{name} has the shape {records.shape}; expected (records, ...), with at least {at_least} of them. A table "
            "has a row for every record; of a single feature, write records[:, None]."
        )
    if not np.isfinite(records).all():
        raise DataError(
            f"{name} has numbers that are infinite or not a number; expected finite ones. Leave such records out, or "
            "fill them in."
        )
    if found.dtype.kind in "iu" and (found.max() > _WHOLE or found.min() < -_WHOLE):
        raise DataError(
            f"{name} has whole numbers of up to {np.abs(records).max():.3g}; expected none beyond 2**53, because such "
            "numbers cannot all be told apart. Subtract what they have in common first."
        )
    if like is not None and records.shape[1:] != like.shape[1:]:
        raise DataError(
            f"{name} has records of the shape {records.shape[1:]}; expected {like.shape[1:]}, as the generated ones."
        )
    return records


def refuse_shared(name: str, records: Records, other_name: str, others: Records) -> None:
    """Refuse records that are in two places, unless equal records are as frequent in one place.

    Records of few different values are equal by chance. Then as many of one place are equal to each other, too. Where
    none are, one that is in both is one too many.

    Raises:
        DataError: More of them are equal than by chance.
    """
    own, times = (Counter(record.tobytes() for record in each) for each in (records, others))
    shared = sum(count for record, count in own.items() if record in times)
    within = [sum(count for count in each.values() if count > 1) for each in (own, times)]
    more = share_difference(shared, len(records), within[1], len(others), _SURE).low > 0
    if more or (shared and not any(within)):
        raise DataError(
            f"{name} has {shared} of its {len(records)} records in common with {other_name}, of which {within[1]} are "
            "equal to each other: this is no chance; expected other records. Leave them out of one of the two."
        )


def check_labels(name: str, value: Any, records: Records) -> Labels:
    """A whole number for every record.

    Raises:
        DataError: They are something else.
    """
    found = as_array(value)
    if found.dtype.kind not in "bui" or found.shape != (len(records),):
        raise DataError(
            f"{name} has the shape {found.shape} and the type {found.dtype}; expected a whole number for each of the "
            f"{len(records)} records. Number the classes."
        )
    return found.astype(np.int64)


def check_answers(value: Any, records: Records) -> Labels:
    """What a classifier has said of records.

    Raises:
        DataError: It is not a label for each.
    """
    found = as_array(value)
    whole = found.dtype.kind in "bui" or (found.dtype.kind == "f" and bool((found == np.round(found)).all()))
    if not whole or found.shape != (len(records),):
        raise DataError(
            f"classifier has given answers of the shape {found.shape} and the type {found.dtype}; expected a label for "
            f"each of the {len(records)} records. Let predict return labels, and no probabilities."
        )
    return found.astype(np.int64)
