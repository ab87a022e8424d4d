"""Comparing models at equal test loss, as the paper does: an earlier checkpoint of those that do better."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_exposure.studies._tables import over_seeds
from lightning_exposure.studies.study import Row, Study, Value


def at_equal_loss(study: Study, rows: Sequence[Row], loss: str = "test_loss") -> list[dict[str, Value]]:
    """For each training the row of the epoch that is as good as the worst training ever gets, seed by seed.

    Trainings of one seed are compared with each other: the loss that all of them reach is the largest of their
    smallest losses, and each is taken at the epoch that comes nearest to it, of the first one where its loss is no
    larger and the one before.

    Args:
        study: Its `keys` has "epoch".
        rows: One for each epoch of each training.
        loss: The column to compare by.

    Example:
        >>> curves = {"sgd": (2.0, 1.8), "adam": (1.7, 1.5), "adagrad": (1.9, 1.6)}
        >>> rows = [{"optimizer": name, "seed": 0, "epoch": epoch, "test_loss": value}
        ...         for name, losses in curves.items() for epoch, value in enumerate(losses, start=1)]
        >>> [(row["optimizer"], row["epoch"]) for row in equal_loss_rows(rows, ("optimizer",))]
        [('sgd', 2), ('adam', 1), ('adagrad', 1)]
    """
    chosen = equal_loss_rows(rows, study.factors, loss)
    return over_seeds(study, chosen, study.factors)


def equal_loss_rows(rows: Sequence[Row], factors: Sequence[str], loss: str = "test_loss") -> list[Row]:
    """The rows that `at_equal_loss` averages."""
    trainings: dict[tuple[Value, ...], list[Row]] = {}
    for row in rows:
        trainings.setdefault((*(row.get(name) for name in factors), row["seed"]), []).append(row)
    best: dict[Value, float] = {}
    for key, epochs in trainings.items():
        smallest = min(_number(row, loss) for row in epochs)
        best[key[-1]] = max(best.get(key[-1], smallest), smallest)
    chosen = []
    for key, epochs in trainings.items():
        wanted = best[key[-1]]
        epochs = sorted(epochs, key=lambda row: _number(row, "epoch"))
        first = next(place for place, row in enumerate(epochs) if _number(row, loss) <= wanted)
        around = epochs[max(first - 1, 0) : first + 1]
        chosen.append(min(around, key=lambda row: abs(_number(row, loss) - wanted)))
    return chosen


def _number(row: Row, name: str) -> float:
    value = row[name]
    assert isinstance(value, int | float), f"{name} is a number"
    return float(value)
