"""`ExposureMonitor`: which exposures are measured when, by which process, and what is logged of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from lightning_exposure._checks import flag, metric_name, whole_number
from lightning_exposure.errors import FitError, ScoreError
from lightning_exposure.exposure import ExposureEstimate, MethodName, SkewNormal, measure_exposure
from lightning_exposure.exposure.estimate import check_measurement
from lightning_exposure.measuring._metrics import exposure_metrics, refuse_names_of_summaries
from lightning_exposure.measuring._pace import Caps, Effort, Pace
from lightning_exposure.measuring._quiet import quiet
from lightning_exposure.measuring.prior import CanaryPrior, PriorSource
from lightning_exposure.measuring.schedule import Schedule
from lightning_exposure.measuring.surroundings import Moment, Surroundings, Update
from lightning_exposure.measuring.tracebacks import without_locals
from lightning_exposure.measuring.trees import CanaryTrees
from lightning_exposure.report.record import Measurement, References, RunRecord
from lightning_exposure.secrets import Canary, Redaction
from lightning_exposure.tree import SecretTree
from lightning_exposure.walks import uniform_walks

_QUICK = {"budget": 1000, "samples": 64}
"""The caps of a trial run."""


class ExposureMonitor:
    """Measures the exposure of canaries during training, in any training loop.

    Call `begin` when the trees are built, `take_baseline` before the first step, `after_step` and `after_epoch` after
    each, and `finish` when training has ended: each measures if it is due, and leaves the model as it was.

    Args:
        trees: The trees of the canaries.
        schedule: When to measure.
        method: As for `measure_exposure`, like `budget`, `samples`, `precision`, `seed` and `confidence`.
        prior: What the exposures are measured against: a module that has not seen the secrets, the path of a
            checkpoint, "without_adapters" (PEFT) or "before_training" (the weights when the run begins, which are kept
            on the CPU, and in the state); None: all secrets are equally likely.
        budget: The largest number of expansions of an exact count.
        samples: The largest number of walks of an estimate.
        precision: Stop as soon as the interval of every canary is at most this many bits wide; None: do not.
        max_share: The largest share of the training time since the last measurement that one may take; None: any.
        seed: The random seed of the walks.
        confidence: The confidence level of the intervals.
        baseline: Whether to measure before training, too.
        references: How many uniformly drawn secrets are scored at the end.
        name: The first part of the metrics' names.
        reveal: Whether states that are saved hold the texts of the canaries.

    Attributes:
        history: All measurements so far.
        baseline_estimates: The estimates before training, by canary id.
        scored_references: At the end: reference log-perplexities by format name.
        timer: The clock that measurements are timed with.

    Example:
        >>> import torch
        >>> from lightning_exposure import CanarySet, SecretFormat
        >>> from lightning_exposure.measuring import Alone, SharedTrees
        >>> from lightning_exposure.tokenization import CharTokenizer
        >>> canaries = CanarySet.draw(SecretFormat("pin ####"), repetitions=[1, 4], seed=0)
        >>> model = torch.nn.Sequential(torch.nn.Embedding(14, 8), torch.nn.Linear(8, 14))
        >>> trees = CanaryTrees(canaries)
        >>> trees.build(SharedTrees(), model, CharTokenizer.from_text("pin 0123456789"))
        >>> monitor, around = ExposureMonitor(trees, Schedule(every_n_epochs=1)), Alone()
        >>> monitor.begin(around)
        >>> metrics = monitor.after_epoch(model, around, Moment(epoch=1, step=10))
        >>> metrics["exposure/max"] == max(e.bits for e in monitor.history[-1].estimates.values())
        True
    """

    def __init__(
        self,
        trees: CanaryTrees,
        schedule: Schedule,
        *,
        method: MethodName = "auto",
        prior: PriorSource | None = None,
        budget: int = 100_000,
        samples: int = 4096,
        precision: float | None = 0.25,
        max_share: float | None = 0.05,
        seed: int = 0,
        confidence: float = 0.95,
        baseline: bool = True,
        references: int = 1000,
        name: str = "exposure",
        reveal: bool = False,
    ) -> None:
        check_measurement(method, budget, samples, confidence, precision)
        whole_number("references", references, at_least=0, remedy="0 is none.")
        whole_number("seed", seed, at_least=0)
        flag("baseline", baseline)
        trees.canaries.refuse_made_for_audits()
        refuse_names_of_summaries(canary.id for canary in trees.canaries)
        self.trees = trees
        self.reveal = flag("reveal", reveal)
        self.prior = CanaryPrior(prior)
        self.schedule = schedule
        self.name = metric_name(name)
        self.history: list[Measurement] = []
        self.baseline_estimates: dict[str, ExposureEstimate] = {}
        self.scored_references: dict[str, References] = {}
        self.timer: Callable[[], float] = time.perf_counter
        self.arguments: dict[str, Any] = {
            "method": method, "budget": budget, "samples": samples, "precision": precision, "seed": seed,
            "confidence": confidence,
        }  # fmt: skip
        self._now = dict(self.arguments)  # for the run under way
        self._pace = Pace(max_share)
        self._has_cut = False
        self._restored = False
        self._last_step = 0
        self._takes_baseline = baseline
        self._reference_count = references

    @property
    def max_share(self) -> float | None:
        """The largest share of the training time that a measurement may take."""
        return self._pace.max_share

    @property
    def settings(self) -> dict[str, Any]:
        """When and how it measures, for reports."""
        when = {"every_n_epochs": self.schedule.every_n_epochs, "every_n_steps": self.schedule.every_n_steps}
        return {**when, **self.arguments, "max_share": self.max_share, "prior": self.prior.source}

    @without_locals
    def begin(self, around: Surroundings, *, quick: bool = False, resumed: bool = False) -> None:
        """Begin a run, with a new history unless a checkpoint has just brought one; and make the prior.

        Args:
            around: Where it runs.
            quick: Whether it is a trial run that should take no time.
            resumed: Whether the weights come from a run that goes on, perhaps one that was not measured.

        Raises:
            ArgumentError: There is no prior as it was asked for.
        """
        self.prior.build(self.trees, around, resumed=resumed or self._restored)
        if not self._restored:
            self.history, self.baseline_estimates, self.scored_references = [], {}, {}
        self._restored, self._last_step = False, self.history[-1].step if self.history else 0
        self._has_cut = False
        self._now = dict(self.arguments)
        if quick:
            # An exact count may need more than a quick trial should take.
            self._now |= _QUICK | ({"method": "auto"} if self.arguments["method"] == "exact" else {})
        self._pace.begin(around.seconds(), [self._effort(measurement) for measurement in self.history])

    @without_locals
    def take_baseline(self, model: nn.Module, around: Surroundings, moment: Moment) -> None:
        """What an untrained or pretrained model already gives, unless it is known from before a resumption."""
        if self._takes_baseline and not self.baseline_estimates:
            moment = replace(moment, last=False)
            self.baseline_estimates = self._measure(model, around, moment, "exposure before training").estimates

    @without_locals
    def after_step(self, model: nn.Module, around: Surroundings, moment: Moment) -> dict[str, float] | None:
        """Measure if a step makes it due.

        Returns:
            What was logged; None if nothing was measured.
        """
        # A step may take several batches.
        if not self.schedule.after_step(moment.step, self._last_step):
            return None
        return self._measure_and_remember(model, around, moment)

    @without_locals
    def after_epoch(self, model: nn.Module, around: Surroundings, moment: Moment) -> dict[str, float] | None:
        """Measure if the end of an epoch makes it due, and these weights were not measured yet.

        Returns:
            What was logged; None if nothing was measured.
        """
        if self.measured_at(moment.step) or not self.schedule.after_epoch(moment.epoch, last=moment.last):
            return None
        return self._measure_and_remember(model, around, moment)

    @without_locals
    def finish(self, model: nn.Module, around: Surroundings, moment: Moment) -> dict[str, float] | None:
        """The weights that training ended with, in full: nothing is held up any more. And the references.

        Returns:
            What was logged; None if nothing was measured.
        """
        metrics, moment = None, replace(moment, last=True)
        if not self.measured_at(moment.step):
            metrics = self._measure_and_remember(model, around, moment)
        elif self.history[-1].cut:
            before = self.history[-1]
            now = self._measure(model, around, moment, "measuring exposure")
            self.history[-1] = replace(now, epoch=before.epoch, train_loss=before.train_loss, val_loss=before.val_loss)
            metrics = self._log(around)
        if self._reference_count:
            with quiet(model), around.status("scoring references"):
                found = self.trees.map(around, self._score_references)
            self.scored_references = {format.name: references for format, references in found.items()}
        return metrics

    def measure_again(
        self,
        model: nn.Module,
        around: Surroundings,
        ids: Sequence[str],
        *,
        effort: int,
        confidence: float,
        seed: int,
    ) -> dict[str, ExposureEstimate]:
        """Measure some canaries once more, with walks of their own and more of them; the history stays as it is.

        Args:
            model: The weights that were measured last.
            around: Where it runs.
            ids: Of the canaries.
            effort: How many times the samples and the budget that were asked for. Intervals become narrower by the
                square root of it.
            confidence: The confidence level of the intervals.
            seed: The random seed of the walks.
        """
        precision, method = self._now["precision"], self._now["method"]
        arguments = {
            "method": "auto" if method == "skewnormal" else method,  # no interval can defend an extrapolation
            "budget": effort * self._now["budget"],
            "samples": effort * self._now["samples"],
            "precision": None if precision is None else precision / effort**0.5,
            "confidence": confidence,
            "seed": seed,
        }
        wanted = set(ids)
        with quiet(model), self.prior.at_hand(self.trees), around.status("measuring further") as update:
            found = self.trees.map(
                around,
                lambda tree, members: _measure_format(
                    tree,
                    [canary for canary in members if canary.id in wanted],
                    {**arguments, "prior": self.prior.of(tree.format)},
                    update,
                ),
            )
        by_text = {estimate.secret: estimate for estimates in found.values() for estimate in estimates}
        return {canary.id: by_text[canary.text] for canary in self.trees.canaries if canary.id in wanted}

    def measured_at(self, step: int) -> bool:
        """Whether the newest measurement is of the weights after this many steps."""
        return bool(self.history) and self.history[-1].step == step

    def note_losses(self, train_loss: float | None, val_loss: float | None) -> None:
        """Losses are known only after the measurement that they belong to."""
        self.history[-1] = replace(self.history[-1], train_loss=train_loss, val_loss=val_loss)

    def newest_metrics(self) -> dict[str, float] | None:
        """The newest numbers; as long as there is only the baseline, those; None if there are none at all."""
        if self.history:
            return self._metrics(self.history[-1])
        if not self.baseline_estimates:
            return None
        before = Measurement(
            epoch=0, step=0, train_loss=None, val_loss=None, seconds=0.0, estimates=self.baseline_estimates
        )
        return self._metrics(before)

    def add_to_record(self, record: RunRecord) -> None:
        """Put all measurements into the record of the run."""
        place = record.place_for(self.name, self.trees.canaries, "history")
        place.history = list(self.history)
        place.baseline = dict(self.baseline_estimates)
        place.references = dict(self.scored_references)
        place.settings = {**place.settings, self.name: self.settings}

    def state_dict(self) -> dict[str, Any]:
        """History and baseline, as plain values; and the weights before training, if they are the prior.

        Checkpoints are passed on: the texts of the canaries are masked.
        """
        state: dict[str, Any] = {
            "history": [
                replace(measurement, estimates=self._masked(measurement.estimates)).to_dict()
                for measurement in self.history
            ],
            "baseline": {key: estimate.to_dict() for key, estimate in self._masked(self.baseline_estimates).items()},
        }
        weights = self.prior.state_dict()
        return state if weights is None else {**state, "prior": weights}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue a history."""
        self._restored = True
        history = [Measurement.from_dict(fields) for fields in state_dict["history"]]
        self.history = [replace(found, estimates=self._with_texts(found.estimates)) for found in history]
        self.baseline_estimates = self._with_texts(
            {key: ExposureEstimate(**fields) for key, fields in state_dict["baseline"].items()}
        )
        self.prior.load_state_dict(state_dict.get("prior"))

    def _masked(self, estimates: Mapping[str, ExposureEstimate]) -> dict[str, ExposureEstimate]:
        canaries = self.trees.canaries
        redaction = Redaction(canaries, shared=True, reveal=self.reveal)
        return {key: estimate.redacted(redaction, canaries[key].format) for key, estimate in estimates.items()}

    def _with_texts(self, estimates: Mapping[str, ExposureEstimate]) -> dict[str, ExposureEstimate]:
        """The estimates of a saved state: its canaries are known by their ids."""
        texts = {canary.id: canary.text for canary in self.trees.canaries}
        return {key: replace(found, secret=texts.get(key, found.secret)) for key, found in estimates.items()}

    def _measure_and_remember(self, model: nn.Module, around: Surroundings, moment: Moment) -> dict[str, float]:
        self.history.append(self._measure(model, around, moment, "measuring exposure"))
        self._last_step = moment.step
        return self._log(around)

    def _measure(self, model: nn.Module, around: Surroundings, moment: Moment, title: str) -> Measurement:
        caps = self._caps(around, last=moment.last)
        arguments = {**self._now, "method": caps.method, "samples": caps.samples, "budget": caps.budget}
        start = self.timer()
        with quiet(model), self.prior.at_hand(self.trees), around.status(title) as update:
            found = self.trees.map(
                around,
                lambda tree, members: _measure_format(
                    tree, members, {**arguments, "prior": self.prior.of(tree.format)}, update
                ),
            )
        by_text = {estimate.secret: estimate for estimates in found.values() for estimate in estimates}
        measurement = Measurement(
            epoch=moment.epoch,
            step=moment.step,
            train_loss=None,
            val_loss=None,
            seconds=self.timer() - start,
            estimates={canary.id: by_text[canary.text] for canary in self.trees.canaries},
            cut=caps.cut,
            prior=self.prior.source,
            **{name: arguments[name] for name in ("method", "samples", "budget", "seed", "precision")},
        )
        self._pace.done(self._effort(measurement), around.seconds())
        return measurement

    def _caps(self, around: Surroundings, *, last: bool) -> Caps:
        """What the next measurement may take: the first process decides for all, by its own clock."""
        asked = Caps(self._now["method"], self._now["samples"], self._now["budget"])
        if self.max_share is None:
            return asked
        caps = around.gather(self._pace.caps(asked, self.trees.depths, around.seconds(), last=last))[0]
        if caps.cut and not self._has_cut:
            self._has_cut = True
            around.say(
                f"{self.name}: a measurement in full is expected to take {caps.expected:.0f} s, more than "
                f"max_share={self.max_share:g} of the training since the last one. This one is cut to "
                f"{caps.samples:,} samples and a budget of {caps.budget:,}; others may be, but not the last one."
            )
        return caps

    def _log(self, around: Surroundings) -> dict[str, float]:
        metrics = self._metrics(self.history[-1])
        around.log(metrics, self.history[-1].step)
        return metrics

    def _metrics(self, measurement: Measurement) -> dict[str, float]:
        metrics = exposure_metrics(self.name, measurement, self.baseline_estimates)
        return {**metrics, f"{self.name}/cut": float(measurement.cut)} if self._has_cut else metrics

    def _effort(self, measurement: Measurement) -> Effort:
        """What a measurement took: the canaries of a format share their walks."""
        by_format: dict[str, int] = {}
        for canary in self.trees.canaries:
            spent = measurement.estimates[canary.id].expansions
            by_format[canary.format.name] = max(spent, by_format.get(canary.format.name, 0))
        return Effort(sum(by_format.values()), measurement.seconds, measurement.cut)

    def _score_references(self, tree: SecretTree, canaries: Sequence[Canary]) -> References:
        exclude = [canary.text for canary in canaries]
        count = min(self._reference_count, tree.size - len(exclude))
        if count < 1:
            return References([])
        costs = uniform_walks(tree, count, seed=self.arguments["seed"], exclude=exclude).costs
        try:
            return References(costs.tolist(), SkewNormal.fit(costs))
        except (FitError, ScoreError):
            # A tiny format, or a model that does not tell secrets apart: the histogram stands alone.
            return References(costs.tolist())


def _measure_format(
    tree: SecretTree, canaries: Sequence[Canary], arguments: dict[str, Any], update: Update
) -> list[ExposureEstimate]:
    budget = arguments["budget"]
    return measure_exposure(
        tree,
        [canary.text for canary in canaries],
        progress=lambda expansions, *_: update(f"{expansions:,} of at most {budget:,} nodes"),
        **arguments,
    )
