"""`AuditCallback`: does a training run keep what its privacy accountant promises? Checked with canaries."""

from __future__ import annotations

import warnings
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_exposure._checks import check_confidence, check_delta, flag
from lightning_exposure.callbacks._canary_callback import CanaryCallback
from lightning_exposure.callbacks._surroundings import (
    TrainerSurroundings,
    callbacks_of,
    final_moment,
    moment,
    show_at_the_end,
    show_to_monitors,
)
from lightning_exposure.data import CanaryDataModule
from lightning_exposure.errors import ArgumentError, DataError, FitError
from lightning_exposure.measuring import AuditWarning, CanaryAudit, ModelOf, Moment, Schedule, audited, other_canaries
from lightning_exposure.privacy.audit.audit import AuditResult
from lightning_exposure.report.record import RunRecord
from lightning_exposure.secrets import CanarySet
from lightning_exposure.tokenization import Tokenizer

_USUAL_DELTA = 1e-5


class AuditCallback(CanaryCallback):
    """Bounds epsilon from below with canaries, about half of which were held out by fair coins.

    The canaries come from `CanarySet.draw(..., holdout=0.5)`. When training ends, and every few epochs if asked, it
    computes how well one can tell from the model which of them were in. The score of a canary is by how many bits its
    log-perplexity fell since training began. The training run itself is not affected.

    Logged: `audit/epsilon_lower` (all looks at a training run together hold with the given confidence),
    `audit/auc`, `audit/accuracy`, `audit/tpr_at_1_percent_fpr`, `audit/privacy_loss`, and with an accountant beside it
    `audit/alarm`, 1 if the lower bound is above the epsilon that `DifferentialPrivacy` promises.

    A canary with k repetitions is k records, and the promise is about one. The bound is always for one record: it is
    the largest epsilon whose guarantee for a group of k (the most repetitions of any canary here) is refuted. That
    costs about a factor k, so draw the canaries with one repetition each.

    With `DifferentialPrivacy(unit="user")` the promise is about one user. A canary of `CanaryDataModule` is a user of
    its own with all its repetitions, so that the bound is for one canary, however often it is repeated.

    Args:
        canaries: What was inserted in the training data and what was held out. Those that no coin was tossed for take
            no part.
        tokenizer: How the module reads text; None: the datamodule's `tokenizer`.
        every_n_epochs: Audit after every n-th epoch, and when training ends; 0: only when training ends.
        delta: The delta of the bound; None: that of the trainer's `DifferentialPrivacy`, or 1e-5.
        confidence: The confidence level of the lower bounds, of all looks together. With `every_n_epochs`, the last
            look may use half of the error, and those before it share the other half.
        baseline: Compare with the model before training. Without it, with what the secrets of a format cost on average.
        raise_on_alarm: Raise a `FitError` after an alarm.
        name: The first part of the metrics' names. Of two callbacks with one name, the second logs under `name_2`; two
            with equal arguments need different names.
        model: Picks the next-token model (a module or a `StepModel`) out of the LightningModule.
        context: For a model without a state: how many of the last tokens it is given.
        batch_size: The largest number of nodes the model reads at once.

    Attributes:
        result: The newest audit, an `AuditResult`.
        alarm: Whether it contradicts the accountant.
        baseline_bits: The log-perplexities before training, by canary id.

    Example:
        >>> from lightning_exposure import CanarySet, SecretFormat
        >>> canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=[1] * 200, seed=0, holdout=0.5)
        >>> callback = AuditCallback(canaries, delta=1e-6)
        >>> len(callback.canaries), callback.result
        (200, None)
    """

    def __init__(
        self,
        canaries: CanarySet,
        tokenizer: Tokenizer | None = None,
        *,
        every_n_epochs: int = 0,
        delta: float | None = None,
        confidence: float = 0.95,
        baseline: bool = True,
        raise_on_alarm: bool = False,
        name: str = "audit",
        model: ModelOf | None = None,
        context: int | None = None,
        batch_size: int = 4096,
    ) -> None:
        schedule = Schedule(every_n_epochs)
        delta = None if delta is None else check_delta(delta, pure=True)
        confidence = check_confidence(confidence)
        flag("baseline", baseline)
        flag("raise_on_alarm", raise_on_alarm)
        canaries = audited(canaries) if isinstance(canaries, CanarySet) else canaries
        super().__init__(canaries, tokenizer, name=name, model=model, context=context, batch_size=batch_size)
        self.every_n_epochs = every_n_epochs
        self.delta = delta
        self.confidence = confidence
        self.baseline = baseline
        self.raise_on_alarm = raise_on_alarm
        self._audit = CanaryAudit(self._trees, schedule, confidence=confidence, baseline=baseline, name=name)

    @property
    def settings(self) -> dict[str, Any]:
        """How it audits, for reports."""
        names = ("every_n_epochs", "delta", "confidence", "baseline")
        return {name: getattr(self, name) for name in names}

    @property
    def result(self) -> AuditResult | None:
        """The newest audit."""
        return self._audit.result

    @property
    def alarm(self) -> bool:
        """Whether it contradicts the accountant."""
        return self._audit.alarm

    @property
    def baseline_bits(self) -> dict[str, float]:
        """The log-perplexities before training, by canary id; empty without a baseline."""
        return self._audit.baseline_bits

    @property
    def records(self) -> int:
        """How many records of the training data the most repeated canary is; 1 user, if the promise is for users."""
        return self._audit.records

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot work, and say what cannot be shown, before any training is paid for."""
        if stage == "fit":
            _check_inserted(trainer, self.canaries)
        super().setup(trainer, pl_module, stage)
        self._audit.name = self.name
        if stage != "fit":
            return
        self._audit.of_users = _are_users(trainer)
        granted, promised = self._delta(trainer), _promised_delta(trainer)
        if promised is not None and granted < promised:
            raise ArgumentError(
                f"delta is {granted}; expected at least {promised}, the delta of DifferentialPrivacy, because its "
                "epsilon says nothing about smaller ones. Leave delta out."
            )
        if trainer.is_global_zero:
            self._warn_if_small(granted)
            _warn_if_cut(trainer)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Try the model's forward; and forget an earlier training, unless a checkpoint has just brought it back."""
        super().on_fit_start(trainer, pl_module)
        self._audit.begin()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What the canaries cost before training."""
        self._audit.take_baseline(pl_module, TrainerSurroundings(trainer))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Audit every few epochs."""
        now = moment(trainer, epoch_ended=True)
        if self._audit.is_due(now):
            show_to_monitors(pl_module, self._run(trainer, pl_module, now, last=False))
            self._sound(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Audit, while the model is still on its device."""
        show_at_the_end(trainer, self._run(trainer, pl_module, final_moment(trainer), last=True))
        self._sound(trainer)

    def add_to_record(self, record: RunRecord) -> None:
        """Put the newest audit into the record of the run."""
        self._audit.add_to_record(record)

    def state_dict(self) -> dict[str, Any]:
        """The baseline and the newest audit, as plain values."""
        return self._audit.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict` gave.

        Raises:
            ArgumentError: It is from a training run with other canaries, or with others held out.
        """
        self._audit.load_state_dict(state_dict)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Find the state that this callback left.

        Raises:
            ArgumentError: There is only that of an audit with other canaries, or with others held out.
        """
        super().on_load_checkpoint(trainer, pl_module, checkpoint)
        if any(self._identity.resembles(key) for key in self._unclaimed(trainer, checkpoint)):
            raise other_canaries()

    def _run(self, trainer: Trainer, module: LightningModule, now: Moment, *, last: bool) -> dict[str, float]:
        _check_ledger(trainer, self.canaries)
        delta, promised = self._delta(trainer), _promised_epsilon(trainer)
        around = TrainerSurroundings(trainer)
        return self._audit.run(module, around, now, delta=delta, promised=promised, last=last)

    def _delta(self, trainer: Trainer) -> float:
        if self.delta is not None:
            return self.delta
        promised = _promised_delta(trainer)
        return _USUAL_DELTA if promised is None else promised

    def _warn_if_small(self, delta: float) -> None:
        shortcoming = self._audit.shortcoming(delta)
        if shortcoming is not None:
            warnings.warn(shortcoming, AuditWarning, stacklevel=2)

    def _sound(self, trainer: Trainer) -> None:
        """After everything is logged: the alarm, if there is one."""
        if not self.alarm or self.result is None:
            return
        text = (
            f"Privacy alarm: {self.result.correct} of {self.result.guesses} guesses about canaries are right, so "
            f"epsilon is at least {self.result.epsilon_lower:.2f} with a confidence of {self.confidence:g}, but "
            f"{_promised_epsilon(trainer):.2f} is promised. Look for noise or clipping that does not happen, batches "
            "that are not drawn as the accountant thinks, layers that mix the samples of a batch, or canaries that are "
            "in more records than their repetitions say, as windows over a running text can make them."
        )
        if self.raise_on_alarm:
            raise FitError(text)
        if trainer.is_global_zero:
            warnings.warn(text, AuditWarning, stacklevel=2)


def _privacy(trainer: Trainer) -> Any | None:
    """The `DifferentialPrivacy` of the trainer, or None."""
    callbacks = callbacks_of(trainer)
    kinds = [[base.__name__ for base in type(callback).__mro__] for callback in callbacks]
    return next((one for one, names in zip(callbacks, kinds, strict=True) if "DifferentialPrivacy" in names), None)


def _promised_epsilon(trainer: Trainer) -> float | None:
    """What the accountant says now, or what was logged last; None without an accountant."""
    now = getattr(_privacy(trainer), "epsilon", None)
    epsilon = trainer.callback_metrics.get("privacy/epsilon") if now is None else now
    return None if epsilon is None else float(epsilon)


def _promised_delta(trainer: Trainer) -> float | None:
    delta = getattr(_privacy(trainer), "delta", None)
    return None if delta is None else float(delta)


def _are_users(trainer: Trainer) -> bool:
    """Whether epsilon is for users, and every canary one: of a data module of the user's own nobody knows."""
    by_user = getattr(_privacy(trainer), "unit", "record") == "user"
    return by_user and isinstance(getattr(trainer, "datamodule", None), CanaryDataModule)


def _check_inserted(trainer: Trainer, canaries: CanarySet) -> None:
    """Refuse a data module that inserts what is held out, or leaves out what is in."""
    theirs = getattr(getattr(trainer, "datamodule", None), "canaries", None)
    if not isinstance(theirs, CanarySet):
        return  # nothing is known of how the canaries get into the data
    copies = {canary.text: canary.copies for canary in theirs}
    for canary in canaries:
        there = copies.get(canary.text, 0)
        if there != canary.copies:
            raise DataError(
                f"canaries has {canary.id!r}, which is in the training data {there} times, according to the "
                f"datamodule; expected {canary.copies}. Give the same CanarySet to both."
            )


def _check_ledger(trainer: Trainer, canaries: CanarySet) -> None:
    """Refuse if a canary that is held out was trained on."""
    ledger = getattr(getattr(trainer, "datamodule", None), "ledger", None)
    if ledger is None:
        return
    counted = (ledger.gather() if trainer.world_size > 1 else ledger).total
    seen = [canary.id for canary in canaries if canary.held_out and counted.get(canary.id)]
    if seen:
        raise DataError(
            f"canaries has {', '.join(seen)} held out, but fetched for training according to the datamodule's ledger; "
            "expected never, because nothing can be concluded from them. Leave out of the data what has held_out=True."
        )


def _warn_if_cut(trainer: Trainer) -> None:
    data = getattr(trainer, "datamodule", None)
    if any(base.__name__ == "TextDataModule" for base in type(data).__mro__):
        warnings.warn(
            "AuditCallback: the data module cuts a running text into windows. A canary can lie in two of them, and "
            "shifts those behind it, so it is more than one record, and the lower bound on epsilon is none for one "
            "record. For an audit, insert canaries as examples of their own, with CanaryDataModule.",
            AuditWarning,
            stacklevel=2,
        )
