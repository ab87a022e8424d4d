"""What tells classes of records apart: any classifier, and a small one that is there already."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_exposure._checks import count_of, number, refusal, whole_number
from lightning_exposure.errors import DataError

_ROUNDING = 1e-13
"""By this share of its largest value a feature may vary by rounding alone."""
_FAR = 1e6
"""What is so many standard deviations away is as far away as anything."""
_COARSE = 1e-3
"""Single precision may be off by this share of what a feature varies by."""
_SEEDS = ("seed", "random_state", "random_seed")
"""What seeds are called."""


@runtime_checkable
class Classifier(Protocol):
    """Learns to tell classes apart; every classifier of scikit-learn is one."""

    def fit(self, records: NDArray[Any], labels: NDArray[np.int64]) -> Any:
        """Learn from records, of the shape in which they were given, in single precision, and labels 0, 1, 2, ..."""

    def predict(self, records: NDArray[Any]) -> Any:
        """The label of each record."""


ClassifierFactory = Callable[[int], Classifier]
"""Makes a new classifier of a seed: `lambda seed: RandomForestClassifier(random_state=seed)`."""


class SmallClassifier:
    """A network with one hidden layer, of records of any shape.

    Every feature is brought to mean 0 and standard deviation 1 first, in double precision: its unit makes no
    difference. What it learns is a function of the records, their order and the seed; no global random state is read
    or changed.

    Args:
        seed: Of the first weights and the batches.
        hidden_size: How many units there are.
        steps: How many batches it learns from.
        batch_size: Of how many records.
        lr: The learning rate, of Adam.

    Example:
        >>> records = np.array([[0.0], [0.1], [0.9], [1.0]], dtype=np.float32)
        >>> classifier = SmallClassifier(seed=0, steps=50)
        >>> classifier.fit(records, np.array([0, 0, 1, 1]))
        >>> classifier.predict(records).tolist()
        [0, 0, 1, 1]
    """

    def __init__(
        self, seed: int, *, hidden_size: int = 128, steps: int = 300, batch_size: int = 128, lr: float = 3e-3
    ) -> None:
        self._generator = torch.Generator().manual_seed(whole_number("seed", seed, at_least=0))
        self._hidden = whole_number("hidden_size", hidden_size, at_least=1)
        self._steps = whole_number("steps", steps, at_least=1)
        self._batch = whole_number("batch_size", batch_size, at_least=1)
        self._lr = number("lr", lr, above=0)
        self._largest = self._mean = self._scale = np.zeros(0)
        self._network = nn.Sequential()

    def fit(self, records: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> None:
        """Learn from records and their labels."""
        flat = _flat(records)
        self._largest = np.abs(flat).max(0)
        self._largest[self._largest == 0] = 1.0
        flat = flat / self._largest
        self._mean, spread = flat.mean(0), flat.std(0)
        # What varies by less than rounding tells nothing; in whatever unit it is measured.
        self._scale = np.where(spread > _ROUNDING, spread, 1.0)
        inputs, targets = self._inputs(records), torch.from_numpy(labels)
        classes = int(labels.max()) + 1
        self._network = nn.Sequential(
            self._layer(inputs.shape[1], self._hidden), nn.ReLU(), self._layer(self._hidden, classes)
        )
        optimizer = torch.optim.Adam(self._network.parameters(), lr=self._lr)
        for places in self._batches(len(inputs)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(self._network(inputs[places]), targets[places]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    @torch.no_grad()
    def predict(self, records: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
        """The label of each record."""
        found: NDArray[np.int64] = self._network(self._inputs(records)).argmax(1).numpy()
        return found

    def _inputs(self, records: NDArray[np.floating[Any]]) -> Tensor:
        """Features with mean 0 and standard deviation 1; in double precision up to here."""
        found = (_flat(records) / self._largest - self._mean) / self._scale
        return torch.from_numpy(np.clip(found, -_FAR, _FAR).astype(np.float32))

    def _layer(self, inputs: int, outputs: int) -> nn.Linear:
        # Not those that PyTorch would draw, from the global generator.
        layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)  # type: ignore[no-untyped-call]
        width = inputs**-0.5
        for parameter in layer.parameters():
            nn.init.uniform_(parameter, -width, width, generator=self._generator)
        return layer

    def _batches(self, count: int) -> Any:
        """Places of records: every record once, in a new order, and then all over again."""
        left = torch.zeros(0, dtype=torch.long)
        for _ in range(self._steps):
            while len(left) < min(self._batch, count):
                left = torch.cat([left, torch.randperm(count, generator=self._generator)])
            yield left[: self._batch]
            left = left[self._batch :]


def check_factory(classifier: object) -> ClassifierFactory:
    """What makes classifiers; None: of the small one.

    Raises:
        ArgumentError: It makes none, or takes something else than a seed.
    """
    if classifier is None:
        return SmallClassifier
    if (
        not callable(classifier)
        or (isinstance(classifier, Classifier) and not isinstance(classifier, type))
        or not _takes_a_seed(classifier)
    ):
        raise refusal(
            "classifier",
            classifier,
            "a function that makes a new classifier, with fit and predict, of a seed",
            "For example lambda seed: RandomForestClassifier(random_state=seed).",
        )

    def make(seed: int) -> Classifier:
        made = classifier(seed)
        if not isinstance(made, Classifier):
            raise refusal(
                "classifier", made, "a function that makes objects with fit and predict", "Return one.", with_type=True
            )
        return made if isinstance(made, SmallClassifier) else _OfOthers(made)

    return make


def _takes_a_seed(make: Callable[..., Any]) -> bool:
    """Whether the first argument may be a seed: of classes of scikit-learn it is something else, such as a size."""
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # of what is written in C, nothing is known
        return True
    try:
        signature.bind(0)
    except TypeError:
        return False
    first, *others = signature.parameters.values()
    if first.name in _SEEDS or first.kind is first.VAR_POSITIONAL:
        return True
    optional = isinstance(make, type) and first.default is not first.empty
    return not optional and not any(parameter.name in _SEEDS for parameter in others)


class _OfOthers:
    """A classifier that is not ours: it gets records in single precision, and its errors are told in our words."""

    def __init__(self, classifier: Classifier) -> None:
        self._classifier = classifier

    def fit(self, records: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> None:
        narrow = _narrow(records)
        flat = _flat(records)
        error = np.abs(_flat(narrow) - flat).max(0)
        largest = np.maximum(np.abs(flat).max(0), np.finfo(np.float64).tiny)
        spread = largest * (flat / largest).std(0)
        coarse = np.flatnonzero((error > _COARSE * spread) & (spread > _ROUNDING * largest))
        if len(coarse):
            raise DataError(
                f"The records have {count_of(len(coarse), 'feature')} that single precision cannot tell apart, the "
                f"first at place {coarse[0]} with a standard deviation of {spread[coarse[0]]:.3g} and values of up to "
                f"{largest[coarse[0]]:.3g}; expected others, because classifiers get such numbers. Subtract the mean "
                "of each feature, or leave out the classifier: SmallClassifier computes in double precision."
            )
        self._tried("learn from", narrow, lambda: self._classifier.fit(narrow, labels))

    def predict(self, records: NDArray[np.floating[Any]]) -> Any:
        narrow = _narrow(records)
        return self._tried("say anything of", narrow, lambda: self._classifier.predict(narrow))

    def _tried(self, what: str, records: NDArray[np.float32], call: Callable[[], Any]) -> Any:
        if records.ndim == 2:
            return call()
        try:
            return call()
        except (TypeError, ValueError) as error:
            raise DataError(
                f"classifier cannot {what} records of the shape {records.shape[1:]} ({error}); expected one that takes "
                "them as they are given. If it takes rows of numbers, give records.reshape(len(records), -1)."
            ) from error


def _narrow(records: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Records in single precision.

    Raises:
        DataError: Some numbers are beyond it.
    """
    with np.errstate(over="ignore"):
        narrow = records.astype(np.float32)
    if not np.isfinite(narrow).all():
        raise DataError(
            f"The records have numbers of up to {np.abs(records).max():.3g}; expected none beyond single precision, "
            "because classifiers get such numbers. Scale them, or leave out the classifier."
        )
    return narrow


def _flat(records: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    return records.reshape(len(records), -1).astype(np.float64)
