"""What tells classes of records apart: any classifier, and a small one that is there already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_exposure._checks import number, refusal, whole_number


@runtime_checkable
class Classifier(Protocol):
    """Learns to tell classes apart; every classifier of scikit-learn is one."""

    def fit(self, records: NDArray[np.float32], labels: NDArray[np.int64]) -> Any:
        """Learn from records, of the shape in which they were given, and their labels, which are 0, 1, 2, ..."""

    def predict(self, records: NDArray[np.float32]) -> Any:
        """The label of each record."""


ClassifierFactory = Callable[[int], Classifier]
"""Makes a new classifier of a seed: `lambda seed: RandomForestClassifier(random_state=seed)`."""


class SmallClassifier:
    """A network with one hidden layer, of records of any shape.

    Every feature is brought to mean 0 and standard deviation 1 first. What it learns is a function of the records,
    their order and the seed; no global random state is read or changed.

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
        self._mean = self._scale = torch.zeros(0)
        self._network = nn.Sequential()

    def fit(self, records: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
        """Learn from records and their labels."""
        inputs, targets = torch.from_numpy(records).flatten(1), torch.from_numpy(labels)
        self._mean, spread = inputs.mean(0), inputs.std(0, correction=0)
        self._scale = torch.where(spread > 1e-6, spread, 1.0)  # what never varies tells nothing
        classes = int(labels.max()) + 1
        self._network = nn.Sequential(
            self._layer(inputs.shape[1], self._hidden), nn.ReLU(), self._layer(self._hidden, classes)
        )
        optimizer = torch.optim.Adam(self._network.parameters(), lr=self._lr)
        for places in self._batches(len(inputs)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(self._logits(inputs[places]), targets[places]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    @torch.no_grad()
    def predict(self, records: NDArray[np.float32]) -> NDArray[np.int64]:
        """The label of each record."""
        found: NDArray[np.int64] = self._logits(torch.from_numpy(records).flatten(1)).argmax(1).numpy()
        return found

    def _logits(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self._network((inputs - self._mean) / self._scale)
        return logits

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
        ArgumentError: It makes none.
    """
    if classifier is None:
        return SmallClassifier
    if not callable(classifier) or (isinstance(classifier, Classifier) and not isinstance(classifier, type)):
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
        return made

    return make
