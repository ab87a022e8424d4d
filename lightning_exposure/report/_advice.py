"""What to do next, as it follows from what a run has shown."""

from __future__ import annotations

import math
from typing import NamedTuple

from lightning_exposure.report._chance import share_not_ruled_out
from lightning_exposure.report._summary import found_by_scan, listed
from lightning_exposure.report.record import Measurement, RunRecord
from lightning_exposure.report.verdicts import HOLDS, LEAKS, UNKNOWN, joint_shade, verdict_of

_ENOUGH = 59
"""So many canaries, none of them found, rule out that more than one secret in twenty is, with 95% confidence."""


class Step(NamedTuple):
    """One thing to do.

    Attributes:
        title: In a few words.
        words: Why, and how.
    """

    title: str
    words: str


def advice(record: RunRecord) -> list[Step]:
    """What to do next, the most urgent first.

    Args:
        record: The run.

    Example:
        >>> from lightning_exposure.secrets import CanarySet, SecretFormat
        >>> record = RunRecord(CanarySet.draw(SecretFormat.ssn(), repetitions=[1, 4]))
        >>> [step.title for step in advice(record)]
        ['Find out', 'Attack the model']
    """
    shade = joint_shade(verdict for canary, verdict in record.judged if canary.copies)
    steps = _of_the_promise(record) + _of_the_scan(record)
    if shade == LEAKS:
        steps += _against_leaks(record)
    elif shade == UNKNOWN:
        steps += _to_find_out(record)
    else:
        steps += _to_be_sure(record, proven=shade == HOLDS)
    return steps + _of_controls(record)


def _against_leaks(record: RunRecord) -> list[Step]:
    pairs = [(canary, verdict) for canary, verdict in record.judged if canary.copies]
    found = [canary for canary, verdict in pairs if verdict.mood == LEAKS]
    steps = [
        Step(
            "Do not hand out these weights as they are",
            "Whatever secrets like these were in the training data have to be taken for readable, by everyone who can "
            "use the model. That goes for its checkpoints, too.",
        ),
        Step(
            "Take the secrets out of the data, and train again",
            "The command lightning-exposure scan lists those in your texts; lightning_exposure.defences has redact, "
            "which replaces them, and sanitize, which takes out what a model would learn by heart.",
        ),
    ]
    rarest = min(canary.copies for canary in found)
    spared = max((canary.copies for canary, verdict in pairs if verdict.mood == HOLDS), default=0)
    if spared and spared < rarest:
        copies = "copy" if spared == 1 else "copies"
        steps.append(
            Step(
                "Remove duplicates",
                f"Secrets with up to {spared:,} {copies} in the data are not found, those with {rarest:,} are.",
            )
        )
    earlier = _before_the_first_leak(record)
    if earlier is not None:
        loss = "" if earlier.val_loss is None else f", with a validation loss of {earlier.val_loss:.4g}"
        steps.append(
            Step(
                "Stop earlier",
                f"After epoch {earlier.epoch:,}{loss}, no inserted secret was known to be found yet. ExposureGate "
                "stops a training at a limit of your own.",
            )
        )
    if record.privacy is None:
        steps.append(
            Step(
                "Train with differential privacy",
                "DifferentialPrivacy(target_epsilon=..., max_grad_norm=..., delta=...) bounds what any one record can "
                "change. Remove duplicates first: it covers copies only as a group.",
            )
        )
    return steps


def _before_the_first_leak(record: RunRecord) -> Measurement | None:
    """The last measurement before the first that shows an inserted secret to be found; None if there is none."""
    inserted = [canary for canary in record.canaries if canary.copies]
    last = None
    for measurement in record.history:
        for canary in inserted:
            estimate = measurement.estimates.get(canary.id)
            if estimate and verdict_of(canary.text, canary.format.size, estimate).mood == LEAKS:
                return last
        last = measurement
    return None


def _to_find_out(record: RunRecord) -> list[Step]:
    unknown = listed(canary.id for canary, verdict in record.judged if canary.copies and verdict.mood == UNKNOWN)
    steps = []
    if record.interrupted:
        steps.append(
            Step("Finish the training", "It was interrupted, and the weights are not the last ones. Resume it.")
        )
    if record.final is not None and record.steps not in (None, record.final.step):
        steps.append(
            Step("Measure the last weights", "The newest measurement is of earlier ones, and decides nothing.")
        )
    elif not record.canaries:
        steps.append(Step("Measure exposure", "ExposureCallback(canaries) does, of secrets that were inserted."))
    else:
        steps.append(
            Step(
                "Find out",
                f"Of {unknown or 'any inserted secret'} it is open how many guesses find it. Measure again with a "
                "larger budget, with more samples, or with method='exact'.",
            )
        )
    if not record.extractions:
        steps.append(
            Step("Attack the model", "ExtractionCallback(canaries) does. What an attack comes up with is found.")
        )
    return steps


def _to_be_sure(record: RunRecord, *, proven: bool) -> list[Step]:
    count = sum(1 for canary in record.canaries if canary.copies)
    steps = []
    if not proven:
        steps.append(
            Step(
                "Prove it",
                "The result rests on samples. method='exact' with a larger budget counts, and a count is a proof.",
            )
        )
    if count and count < _ENOUGH:
        share = math.ceil(100 * share_not_ruled_out(count))
        steps.append(
            Step(
                "Insert more canaries",
                f"None of {count:,} was found: that still leaves room for up to {share}% of such secrets, with 95% "
                f"confidence. {_ENOUGH} of them leave 5%.",
            )
        )
    steps.append(
        Step(
            "Keep measuring",
            "The result is about these weights, and secrets of these formats with so many copies. Measure again after "
            "every further training, and for other kinds of secrets.",
        )
    )
    return steps


def _of_the_promise(record: RunRecord) -> list[Step]:
    steps = []
    if record.audit is not None and record.audit.get("alarm"):
        steps.append(
            Step(
                "Do not rely on epsilon",
                "The audit contradicts the accountant. Look for noise or clipping that does not happen, batches that "
                "are not drawn as the accountant thinks, and layers that mix the examples of a batch.",
            )
        )
    if record.gate is not None and record.gate.get("answer") == "exceeded":
        steps.append(Step("Mind the gate", str(record.gate.get("reason", "A limit was exceeded."))))
    if record.privacy is not None:
        if float(record.privacy["epsilon"]) == math.inf:
            steps.append(
                Step("Add noise", "Clipping alone promises nothing: epsilon is infinite. Give a target_epsilon.")
            )
        elif record.audit is None:
            steps.append(
                Step(
                    "Audit the promise",
                    "CanarySet.draw(..., holdout=0.5) and AuditCallback test from outside whether epsilon can be true.",
                )
            )
    return steps


def _of_controls(record: RunRecord) -> list[Step]:
    found = [canary.id for canary, verdict in record.judged if not canary.copies and verdict.mood == LEAKS]
    if not found:
        return []
    return [
        Step(
            "Measure against a prior",
            f"{listed(found)} was never in the data, and is found all the same: on that format the model prefers some "
            "secrets for other reasons. ExposureCallback(prior=...) takes a model that has not seen the data.",
        )
    ]


def _of_the_scan(record: RunRecord) -> list[Step]:
    memorized, extracted = found_by_scan(record.scan)
    if not memorized and not extracted:
        return []
    if not memorized:
        return [
            Step(
                "Look at the real secrets that an attack finds",
                f"An attack on the model comes up with {extracted:,} of the training texts. Whether they were "
                "memorized, or are what any model would say, only a reference can tell: ScanCallback(reference=...). "
                "Until then, take them for readable.",
            )
        ]
    return [
        Step(
            "Change the secrets that were memorized",
            f"The scan of the training texts calls {memorized:,} real secret{'' if memorized == 1 else 's'} memorized. "
            "Replace passwords and keys; remove the others, and train again.",
        )
    ]
