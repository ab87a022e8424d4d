"""`GeneratedDataAttack`: what a classifier that has only seen generated records knows about real ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_exposure._checks import check_confidence, whole_number
from lightning_exposure.synthetic.records._arrays import Records, check_answers, check_records, refuse_shared
from lightning_exposure.synthetic.records._noise import Noise, RealRecords, check_noise, draw_noise
from lightning_exposure.synthetic.records._shares import Estimate, privacy_loss, share, share_difference
from lightning_exposure.synthetic.records.classifier import ClassifierFactory, check_factory

_SEEDS = 2**31
_STREAM = 0x67646174
"""Beside the seed: whoever has drawn records with `default_rng(0)` must not get them again as the noise of seed 0."""


@dataclass(frozen=True)
class AttackResult:
    """What a classifier of generated records says of real ones.

    Attributes:
        members: P: which share of the records that the generator was trained on is called true.
        held_out: The same of records that it never saw.
        privacy_loss: (P - 0.5) / 0.5 of the members, as Gao, Chen and Zhang define it.
        held_out_loss: The same of the records that were held out: what there is to see of the population.
        leak: P of the members minus P of the others. Not above 0, as far as can be told, if `leak.low <= 0`.
        noise_told: Which share of fresh noise the classifier tells to be false. If this is small, it says "true" to
            everything, and P means nothing.
        confidence: Of every interval.
    """

    members: Estimate
    held_out: Estimate
    privacy_loss: Estimate
    held_out_loss: Estimate
    leak: Estimate
    noise_told: Estimate
    confidence: float

    def __str__(self) -> str:
        return (
            f"P {self.members} of members, {self.held_out} of held-out records (intervals of {self.confidence:.0%}); "
            f"privacy loss {self.privacy_loss}; leak {self.leak}"
        )


class GeneratedDataAttack:
    """Trains a classifier on generated records against noise, and asks it about real ones.

    The attack is that of Gao, Chen and Zhang: the classifier learns to call generated records true and noise false. P
    is the share of real records that it calls true, which is the right answer, and (P - 0.5) / 0.5 the privacy loss.

    Two things are added. A good generator knows what records of its *population* look like, and so does the classifier
    then: P is large whether or not a record was trained on. That is what generated data are for, and no leak. So the
    same is asked about records that were held out, and the leak is the difference.

    And P is asked of real records only, all of which are true: one who calls everything true has a P of 1. So as many
    records of noise as generated ones are trained on, neither being the likelier answer beforehand, and the classifier
    is asked about fresh noise, too (`noise_told`). The leak needs no balance: who calls everything true shows none.

    The classifiers vote: a record is called true if more than half of them say so, each with a seed and noise of its
    own. The intervals are about the records: what P would be of all records of the population, given these generated
    records and these classifiers. Members and held-out records have to be drawn from one population alike. The leak is
    what this attack has found; another one may find more.

    Args:
        classifier: Makes a new classifier of a seed; see `ClassifierFactory`. None: of `SmallClassifier`.
        noise: "uniform" (between the smallest and the largest value of each feature), "normal" (of each feature's mean
            and standard deviation) or "shuffled" (each feature's values, from any records): all of the generated
            records, which is all that an attacker sees. Or an array of real records that the generator was not trained
            on, none of the held-out ones among them: the sharper attack, where uniform noise is told from data so
            easily that P is near 1 for all. Or a function of the generated records, a number and a
            `numpy.random.Generator`.
        classifiers: How many vote.
        confidence: Of every interval.
        seed: Of everything that is random.

    Example:
        A "generator" that gives away its records as they are, of a population that looks like noise:

        >>> luck = np.random.default_rng(0)
        >>> members, others = luck.random((2, 60, 20))
        >>> result = GeneratedDataAttack(classifiers=1).measure(members, members=members, held_out=others)
        >>> result.members.value, result.held_out.value < 0.8, result.leak.low > 0.2
        (1.0, True, True)
    """

    def __init__(
        self,
        classifier: ClassifierFactory | None = None,
        *,
        noise: Any = "uniform",
        classifiers: int = 5,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        self._make = check_factory(classifier)
        self._noise: Noise = check_noise(noise)
        self._classifiers = whole_number("classifiers", classifiers, at_least=1)
        self._confidence = check_confidence(confidence)
        self._seed = whole_number("seed", seed, at_least=0)

    def measure(
        self,
        generated: Any,
        *,
        members: Any,
        held_out: Any,
        on_classifier: Callable[[int, int], None] | None = None,
    ) -> AttackResult:
        """Ask about real records.

        Args:
            generated: Records that the generator has made: an array or tensor, the records along its first dimension.
            members: Records that it was trained on.
            held_out: Records of the same population that it has not seen.
            on_classifier: Called after each classifier with how many are done, and how many there will be.

        Raises:
            DataError: These are no records, or not of the same shape; or some are in two places.
        """
        generated = check_records("generated", generated, at_least=2)
        members = check_records("members", members, like=generated)
        held_out = check_records("held_out", held_out, like=generated)
        if isinstance(self._noise, RealRecords):
            check_records("noise", self._noise.records, like=generated)
            refuse_shared("noise", self._noise.records, "held_out", held_out)
            refuse_shared("noise", self._noise.records, "members", members)
        refuse_shared("held_out", held_out, "members", members)
        luck = np.random.default_rng((_STREAM, self._seed))
        noise, fresh = self._noise.split(luck) if isinstance(self._noise, RealRecords) else (self._noise, self._noise)
        # Real records in the place of noise are asked about once each, because the interval takes them for independent.
        asked = fresh.records if isinstance(fresh, RealRecords) else draw_noise(fresh, generated, len(generated), luck)
        tell = on_classifier or (lambda done, total: None)
        of_members, of_others, of_noise = self._votes(generated, noise, luck, tell, members, held_out, asked)
        return attack_result(of_members, of_others, of_noise, confidence=self._confidence)

    def _votes(
        self,
        generated: Records,
        noise: Noise,
        luck: np.random.Generator,
        tell: Callable[[int, int], None],
        *questions: Records,
    ) -> list[NDArray[np.bool_]]:
        """Which records of each question are called true by most classifiers."""
        labels = np.repeat([1, 0], len(generated))
        tallies = [np.zeros(len(records), dtype=np.int64) for records in questions]
        for done in range(1, self._classifiers + 1):
            false = draw_noise(noise, generated, len(generated), luck)
            classifier = self._make(int(luck.integers(_SEEDS)))
            classifier.fit(np.concatenate([generated, false]), labels)
            for tally, records in zip(tallies, questions, strict=True):
                tally += check_answers(classifier.predict(records), records) == 1
            tell(done, self._classifiers)
        return [2 * tally > self._classifiers for tally in tallies]


def attack_result(
    members: NDArray[np.bool_], held_out: NDArray[np.bool_], noise: NDArray[np.bool_], *, confidence: float = 0.95
) -> AttackResult:
    """The numbers of an attack, of which records were called true.

    Args:
        members: For each record that the generator was trained on.
        held_out: For each that was held out.
        noise: For each of the fresh noise.
        confidence: Of every interval.

    Example:
        >>> called = np.array([True] * 9 + [False]), np.array([True] * 6 + [False] * 4), np.array([False] * 10)
        >>> print(attack_result(*called))
        P 0.900 [0.555, 0.997] of members, 0.600 [0.262, 0.878] of held-out records (intervals of 95%); privacy loss
        0.800 [0.110, 0.995]; leak 0.300 [-0.143, 0.651]
    """
    inside, outside = int(members.sum()), int(held_out.sum())
    p = share(inside, len(members), confidence)
    other = share(outside, len(held_out), confidence)
    return AttackResult(
        members=p,
        held_out=other,
        privacy_loss=privacy_loss(p),
        held_out_loss=privacy_loss(other),
        leak=share_difference(inside, len(members), outside, len(held_out), confidence),
        noise_told=share(int((~noise).sum()), len(noise), confidence),
        confidence=confidence,
    )
