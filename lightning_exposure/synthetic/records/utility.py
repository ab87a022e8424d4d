"""`UtilityMatrix`: what generated records are good for, told by classifiers trained and tested on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torchmetrics.functional.classification import multiclass_accuracy

from lightning_exposure._checks import check_confidence, refusal, whole_number
from lightning_exposure.errors import DataError
from lightning_exposure.synthetic.records._arrays import (
    Labels,
    Records,
    check_answers,
    check_labels,
    check_records,
    refuse_shared,
)
from lightning_exposure.synthetic.records._shares import Estimate, mean_over_seeds
from lightning_exposure.synthetic.records.classifier import Classifier, ClassifierFactory, check_factory


@dataclass(frozen=True)
class Utility:
    """The accuracies of classifiers, a number for each seed.

    Attributes:
        p1: Trained on private records, tested on private ones.
        p2: Trained on generated records, tested on private ones.
        p3: Trained on private records, tested on generated ones.
        p4: Trained on generated records, tested on generated ones.
        confidence: Of the intervals.
    """

    p1: tuple[float, ...]
    p2: tuple[float, ...]
    p3: tuple[float, ...]
    p4: tuple[float, ...]
    confidence: float = 0.95

    def mean(self, name: str) -> Estimate:
        """The mean of "p1", "p2", "p3" or "p4" over the seeds."""
        found = mean_over_seeds(getattr(self, name), self.confidence)
        return Estimate(found.value, max(0.0, found.low), min(1.0, found.high))

    @property
    def loss(self) -> Estimate:
        """P1 - p2: the accuracy that is lost if generated records are trained on in the place of private ones.

        Each seed's difference is one number. The interval is about the seeds: other first weights and batches of the
        classifiers. It is not about other test records, nor about another generator.
        """
        return mean_over_seeds([one - two for one, two in zip(self.p1, self.p2, strict=True)], self.confidence)

    def __str__(self) -> str:
        means = ", ".join(f"{name} {np.mean(getattr(self, name)):.3f}" for name in ("p1", "p2", "p3", "p4"))
        return f"{means}; p1 - p2 {self.loss} ({self.confidence:.0%}, {len(self.p1)} seeds)"


class UtilityMatrix:
    """Trains a classifier on private and on generated records, and tests it on both.

    Args:
        classifier: Makes a new classifier of a seed; see `ClassifierFactory`. None: of `SmallClassifier`.
        seeds: Of the classifiers, at least two: for each, one is trained on private and one on generated records.
        confidence: Of the intervals.

    Example:
        >>> luck = np.random.default_rng(0)
        >>> def records(count):
        ...     labels = luck.integers(2, size=count)
        ...     return labels[:, None] + 0.1 * luck.standard_normal((count, 3)), labels
        >>> matrix = UtilityMatrix(seeds=(0, 1))
        >>> print(matrix.measure(records(50), records(50), private_test=records(50), generated_test=records(50)))
        p1 1.000, p2 1.000, p3 1.000, p4 1.000; p1 - p2 0.000 [0.000, 0.000] (95%, 2 seeds)
    """

    def __init__(
        self,
        classifier: ClassifierFactory | None = None,
        *,
        seeds: Sequence[int] = (0, 1, 2, 3, 4),
        confidence: float = 0.95,
    ) -> None:
        self._make = check_factory(classifier)
        several = hasattr(seeds, "__len__") and not isinstance(seeds, str | bytes)
        self._seeds = [
            whole_number(f"seeds[{place}]", seed, at_least=0) for place, seed in enumerate(seeds if several else ())
        ]
        if len(set(self._seeds)) < max(2, len(self._seeds)):
            raise refusal("seeds", seeds, "at least two seeds, all different", "For example range(5).")
        self._confidence = check_confidence(confidence)

    def measure(
        self,
        private: Any,
        generated: Any,
        *,
        private_test: Any,
        generated_test: Any,
        on_classifier: Callable[[int, int], None] | None = None,
    ) -> Utility:
        """Train and test; each argument is a pair of records and their labels.

        Args:
            private: Private records, to train on.
            generated: Generated records, to train on; better as many as private ones.
            private_test: Other private records, none of which is in `private`.
            generated_test: Other generated records.
            on_classifier: Called after each classifier with how many are done, and how many there will be.

        Raises:
            DataError: One of them is no such pair, they are not of the same shape, or private records are in both.
        """
        first = _pair("generated", generated, None)
        named = {"private": private, "private_test": private_test, "generated_test": generated_test}
        pairs = {"generated": first, **{name: _pair(name, value, first[0]) for name, value in named.items()}}
        # A generator may repeat itself; private records to test on must not have been trained on.
        refuse_shared("private_test", pairs["private_test"][0], "private", pairs["private"][0])
        # Classes are numbered 0, 1, 2, ..., whatever they were called.
        names = np.unique(np.concatenate([labels for _, labels in pairs.values()]))
        pairs = {name: (records, np.searchsorted(names, labels)) for name, (records, labels) in pairs.items()}
        tests = pairs["private_test"], pairs["generated_test"]
        found: list[list[float]] = []
        for seed in self._seeds:
            trained: list[Classifier] = []
            for name in ("private", "generated"):
                trained.append(self._trained(seed, *pairs[name]))
                if on_classifier is not None:
                    on_classifier(2 * len(found) + len(trained), 2 * len(self._seeds))
            # p1, p2, p3, p4: by test, then by what was trained on.
            found.append([_accuracy(each, *test, len(names)) for test in tests for each in trained])
        p1, p2, p3, p4 = (tuple(column) for column in zip(*found, strict=True))
        return Utility(p1, p2, p3, p4, confidence=self._confidence)

    def _trained(self, seed: int, records: Records, labels: Labels) -> Classifier:
        classifier = self._make(seed)
        classifier.fit(records, labels)
        return classifier


def _accuracy(classifier: Classifier, records: Records, labels: Labels, classes: int) -> float:
    answers = torch.from_numpy(check_answers(classifier.predict(records), records))
    right = multiclass_accuracy(
        # A label that does not exist is as wrong as any other; torchmetrics would refuse it.
        torch.where((answers >= 0) & (answers < classes), answers, classes),
        torch.from_numpy(labels),
        num_classes=classes + 1,
        average="micro",
    )
    return float(right)


def _pair(name: str, value: Any, like: Records | None) -> tuple[Records, Labels]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise refusal(name, value, "a pair of records and labels", f"Write {name}=(records, labels).", error=DataError)
    records = check_records(f"{name}[0]", value[0], like=like)
    return records, check_labels(f"{name}[1]", value[1], records)
