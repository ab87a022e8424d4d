"""`CanaryRun`: the measurement, the attack and the audit of one training run, for whatever trains."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn

from lightning_exposure._checks import check_delta, refusal
from lightning_exposure.exposure import ExposureEstimate, MethodName
from lightning_exposure.extraction import Extraction
from lightning_exposure.measuring._quiet import quiet
from lightning_exposure.measuring.attack import CanaryAttack
from lightning_exposure.measuring.audit import AuditWarning, CanaryAudit, audited
from lightning_exposure.measuring.exposure import ExposureMonitor
from lightning_exposure.measuring.prior import PriorSource
from lightning_exposure.measuring.schedule import Schedule
from lightning_exposure.measuring.surroundings import Moment, Surroundings
from lightning_exposure.measuring.trees import CanaryTrees, ModelOf, SharedTrees
from lightning_exposure.privacy.audit.audit import AuditResult
from lightning_exposure.report.record import Measurement, References, RunRecord
from lightning_exposure.report.verdicts import Verdict
from lightning_exposure.secrets import CanarySet
from lightning_exposure.tokenization import Tokenizer


class CanaryRun:
    """Everything that is done about canaries in a training run: measured during it, attacked and audited at its end.

    Call `begin` before the first step, `after_step` and `after_epoch` after each, and `finish` when training has ended.
    `ExposureLoop` does so for a loop of your own.

    Args:
        canaries: What was inserted in the training data.
        every_n_epochs: Measure after every n-th epoch, and when training ends; 0: only when training ends.
        every_n_steps: Measure after every n-th optimizer step, too; None: never.
        method: As for `measure_exposure`, like `budget`, `samples`, `precision`, `seed` and `confidence`.
        prior: What exposure is measured against, as for `ExposureMonitor`.
        budget: The largest number of expansions of an exact count.
        samples: The largest number of walks of an estimate.
        precision: Stop as soon as the interval of every canary is at most this many bits wide; None: do not.
        max_share: The largest share of the training time that a measurement may take; None: any.
        seed: The random seed of the walks.
        confidence: The confidence level of the intervals and of the audit's bound.
        baseline: Whether to measure before training, too.
        references: How many uniformly drawn secrets are scored at the end.
        name: The first part of the metrics' names.
        model: Picks the next-token model (a module or a `StepModel`) out of the one that is trained.
        context: For a model without a state: how many of the last tokens it is given.
        batch_size: The largest number of nodes the model reads at once.
        attack: Attack the model when training ends: True, or the arguments of `extract`, such as
            `{"algorithm": "beam", "width": 50}`; False: not.
        audit: Bound epsilon from below when training ends; None: if coins were tossed for some of the canaries,
            with `CanarySet.draw(..., holdout=0.5)`.
        delta: The delta of the audit's bound.
        reveal: Whether states that are saved hold texts in full.

    Attributes:
        monitor: Measures.
        attack: Attacks; None: not asked for.
        audit: Audits; None: not asked for.

    Raises:
        ArgumentError: An argument is out of range; it is named.
    """

    def __init__(
        self,
        canaries: CanarySet,
        *,
        every_n_epochs: int = 1,
        every_n_steps: int | None = None,
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
        model: ModelOf | None = None,
        context: int | None = None,
        batch_size: int = 4096,
        attack: bool | Mapping[str, Any] = True,
        audit: bool | None = None,
        delta: float = 1e-5,
        reveal: bool = False,
    ) -> None:
        schedule = Schedule(every_n_epochs, every_n_steps)
        check_delta(delta, pure=True)
        # What was made for an audit is audited, and not measured; a set of nothing else is refused by name.
        measured = canaries.for_exposure if isinstance(canaries, CanarySet) else canaries
        self._trees = CanaryTrees(measured or canaries, model=model, context=context, batch_size=batch_size)
        self.monitor = ExposureMonitor(
            self._trees,
            schedule,
            method=method,
            prior=prior,
            budget=budget,
            samples=samples,
            precision=precision,
            max_share=max_share,
            seed=seed,
            confidence=confidence,
            baseline=baseline,
            references=references,
            name=name,
            reveal=reveal,
        )
        prefix = "" if name == "exposure" else f"{name}_"
        self.attack = _attack_of(self._trees, attack, f"{prefix}extraction", reveal)
        self.audit: CanaryAudit | None = None
        if audit or (audit is None and any(canary.holdout for canary in canaries)):
            trees = CanaryTrees(audited(canaries), model=model, context=context, batch_size=batch_size)
            self.audit = CanaryAudit(trees, Schedule(0), confidence=confidence, name=f"{prefix}audit")
        self.canaries = canaries
        self.delta = delta

    # ---- what was found -----------------------------------------------------------------------------------

    @property
    def history(self) -> list[Measurement]:
        """All measurements so far."""
        return self.monitor.history

    @property
    def baseline_estimates(self) -> dict[str, ExposureEstimate]:
        """The estimates before training, by canary id; empty without a baseline."""
        return self.monitor.baseline_estimates

    @property
    def scored_references(self) -> dict[str, References]:
        """After training: reference log-perplexities by format name."""
        return self.monitor.scored_references

    @property
    def extractions(self) -> dict[str, Extraction]:
        """The attack at the end, by format name; empty without one."""
        return {} if self.attack is None else self.attack.extractions

    @property
    def extracted(self) -> list[str]:
        """The ids of the canaries among the candidates of the attack."""
        return [] if self.attack is None else self.attack.extracted

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """How many guesses find each canary, by its id."""
        record = RunRecord(CanarySet([]))
        self.add_to_record(record)
        return record.verdicts

    @property
    def result(self) -> AuditResult | None:
        """The audit at the end; None without one."""
        return None if self.audit is None else self.audit.result

    @property
    def settings(self) -> dict[str, Any]:
        """How it measures, for reports."""
        return self.monitor.settings

    def add_to_record(self, record: RunRecord) -> None:
        """Put what was measured, attacked and audited into the record of the run."""
        for part in self._parts.values():
            part.add_to_record(record)

    # ---- what is called -----------------------------------------------------------------------------------

    def check(self, shared: SharedTrees, tokenizer: Tokenizer | Any) -> None:
        """Refuse a tokenizer that cannot spell the formats.

        Raises:
            TokenizerError: It cannot.
        """
        for format in self.canaries.by_format():
            shared.spelling(format, tokenizer)

    def build(self, shared: SharedTrees, model: nn.Module, tokenizer: Tokenizer | Any) -> None:
        """Build the trees, and try the model's forward.

        Raises:
            TokenizerError: The tokenizer cannot spell the formats.
            ModelError: No adapter fits the model.
        """
        with quiet(model):
            for trees in [self._trees, *([] if self.audit is None else [self.audit.trees])]:
                trees.build(shared, model, tokenizer)

    def begin(self, model: nn.Module, around: Surroundings, step: int = 0) -> None:
        """Begin a run, with a new history unless a state was just loaded; and measure what the model already gives.

        Args:
            model: What is trained.
            around: Where it runs.
            step: How many optimizer steps were taken before.
        """
        self.monitor.begin(around)
        if self.attack is not None:
            self.attack.begin(model)
        self.monitor.take_baseline(model, around, Moment(0, step))
        if self.audit is not None:
            self.audit.begin()
            shortcoming = self.audit.shortcoming(self.delta)
            if shortcoming is not None and around.rank == 0:
                warnings.warn(shortcoming, AuditWarning, stacklevel=3)
            self.audit.take_baseline(model, around)

    def after_step(self, model: nn.Module, around: Surroundings, moment: Moment) -> dict[str, float] | None:
        """Measure if a step makes it due; returns what was logged, if anything."""
        return self.monitor.after_step(model, around, moment)

    def after_epoch(self, model: nn.Module, around: Surroundings, moment: Moment) -> dict[str, float] | None:
        """Measure if the end of an epoch makes it due; returns what was logged, if anything."""
        return self.monitor.after_epoch(model, around, moment)

    def finish(self, model: nn.Module, around: Surroundings, moment: Moment) -> None:
        """The weights that training ended with: measure, attack and audit them."""
        self.monitor.finish(model, around, moment)
        if self.attack is not None:
            newest = self.history[-1].estimates.values()
            self.attack.finish(model, around, moment, {estimate.secret: estimate for estimate in newest})
        if self.audit is not None:
            self.audit.run(model, around, moment, delta=self.delta, promised=None)

    def state_dict(self) -> dict[str, Any]:
        """Everything so far, for a checkpoint."""
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue what `state_dict` gave."""
        for name, part in self._parts.items():
            if name in state_dict:
                part.load_state_dict(state_dict[name])

    @property
    def _parts(self) -> dict[str, Any]:
        parts = {"exposure": self.monitor, "attack": self.attack, "audit": self.audit}
        return {name: part for name, part in parts.items() if part is not None}


def _attack_of(trees: CanaryTrees, asked: bool | Mapping[str, Any], name: str, reveal: bool) -> CanaryAttack | None:
    if isinstance(asked, bool):
        return CanaryAttack(trees, Schedule(0), name=name, reveal=reveal) if asked else None
    if not isinstance(asked, Mapping):
        raise refusal("attack", asked, "True, False, or the arguments of `extract`, such as {'algorithm': 'beam'}")
    settings = dict(asked)
    algorithm, top_k = settings.pop("algorithm", "shortest_path"), settings.pop("top_k", None)
    return CanaryAttack(trees, Schedule(0), algorithm, top_k=top_k, settings=settings, name=name, reveal=reveal)
