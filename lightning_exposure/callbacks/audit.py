"""`AuditCallback`: does a training keep what its privacy accountant promises? Checked from outside, with canaries."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_exposure._checks import check_confidence, check_delta
from lightning_exposure.callbacks._progress import status
from lightning_exposure.callbacks._trees import CanaryTrees, ModelOf, only_one_with_this_name
from lightning_exposure.callbacks.quiet import quiet
from lightning_exposure.errors import ArgumentError, DataError, FitError
from lightning_exposure.privacy.audit.audit import AuditResult, audit, largest_provable_epsilon
from lightning_exposure.secrets import Canary, CanarySet
from lightning_exposure.tokenization import Tokenizer
from lightning_exposure.tree import SecretTree
from lightning_exposure.walks import score, uniform_walks

_USUAL_DELTA = 1e-5
_WORTHWHILE = 0.5
"""An audit that cannot prove an epsilon of this, whatever happens, is not worth its time."""
_REFERENCES = 256


class AuditWarning(UserWarning):
    """An audit contradicts the accountant, or is too small to be able to."""


class AuditCallback(Callback):
    """Bounds epsilon from below with canaries of which a fair coin left out each second one.

    The canaries come from `CanarySet.draw(..., holdout=0.5)`. When the training ends, and every few epochs if asked, it
    computes how well one can tell from the model which of them were in. The score of a canary is by how many bits its
    log-perplexity fell since the training began. The training is not changed in the least.

    Logged: `audit/epsilon_lower` (holds with the given confidence, by itself: many looks are many chances of error),
    `audit/auc`, `audit/accuracy`, `audit/tpr_at_1_percent_fpr`, `audit/privacy_loss`, and with an accountant beside it
    `audit/alarm`, 1 if the lower bound is above the epsilon that `DifferentialPrivacy` promises.

    A canary with k repetitions is k records, and the promise is about one. The bound is always for one record: it is
    the largest epsilon whose guarantee for a group of k (the most repetitions of any canary here) is refuted. That
    costs about a factor k, so draw the canaries with one repetition each.

    Args:
        canaries: What was inserted in the training data and what was held out. Those that no coin was tossed for take
            no part.
        tokenizer: How the module reads text; None: the datamodule's `tokenizer`.
        every_n_epochs: Audit at the end of every so many epochs too; 0: only when the training ends.
        delta: What the training is granted; None: the delta of the trainer's `DifferentialPrivacy`, or 1e-5.
        confidence: Of the lower bound.
        baseline: Compare with the model before training. Without it, with what the secrets of a format cost on average.
        raise_on_alarm: Raise a `FitError` after an alarm.
        name: The first part of the metrics' names.
        model: Picks the next-token model (a module or a `StepModel`) out of the LightningModule.
        context: For a model without a state: how many of the last tokens it is given.
        batch_size: The largest number of nodes the model reads at once.

    Attributes:
        result: The newest audit, an `AuditResult`.
        alarm: Whether it contradicts the accountant.
        baseline: The log-perplexities before training, by canary id.

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
        if not isinstance(every_n_epochs, int) or every_n_epochs < 0:
            raise ArgumentError(
                f"every_n_epochs is {every_n_epochs!r}; expected a whole number, 0 for only at the end."
            )
        if delta is not None:
            check_delta(delta, pure=True)
        check_confidence(confidence)
        self.canaries = audited(canaries) if isinstance(canaries, CanarySet) else canaries
        self.every_n_epochs = every_n_epochs
        self.delta = delta
        self.confidence = confidence
        self.raise_on_alarm = raise_on_alarm
        self.name = name
        self.result: AuditResult | None = None
        self.alarm = False
        self.baseline: dict[str, float] = {}
        self._takes_baseline = baseline
        self._restored = False
        self._audited_at = -1
        self._trees = CanaryTrees(self.canaries, tokenizer, model=model, context=context, batch_size=batch_size)

    @property
    def state_key(self) -> str:
        """Different for callbacks with different canaries or settings, so that each finds its own state again."""
        how = f"{self.every_n_epochs}, {self.delta}, {self.confidence}, {self._takes_baseline}"
        return f"{type(self).__name__}[{', '.join(canary.id for canary in self.canaries)}; {how}]"

    @property
    def records(self) -> int:
        """How many records of the training data the most repeated canary is."""
        return max(canary.repetitions for canary in self.canaries)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot work, and say what cannot be shown, before any training is paid for."""
        if stage != "fit":
            return
        only_one_with_this_name(trainer, self)
        _check_inserted(trainer, self.canaries)
        self._trees.check(trainer)
        granted, promised = self._delta(trainer), _promised_delta(trainer)
        if promised is not None and granted < promised:
            raise ArgumentError(
                f"delta={granted}: smaller than the delta of DifferentialPrivacy, {promised}, whose epsilon says "
                f"nothing about it; expected at least {promised}, or None."
            )
        if trainer.is_global_zero:
            self._warn_if_small(granted)
            _warn_if_cut(trainer)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Try the model's forward; and forget an earlier training, unless a checkpoint has just brought it back."""
        if not self._restored:
            self.result, self.alarm, self.baseline = None, False, {}
        self._restored, self._audited_at = False, -1
        with quiet(pl_module):
            self._trees.build(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What the canaries cost before training."""
        if self._takes_baseline and not self.baseline:
            self.baseline = self._bits(trainer, pl_module, "canaries before training")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Audit every few epochs."""
        if self.every_n_epochs and (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            pl_module.log_dict(self._audit(trainer, pl_module))
            self._sound(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Audit, while the model is still on its device; here nothing can be logged through the module any more."""
        if self._audited_at == trainer.global_step:
            return  # nothing has changed since
        metrics = self._audit(trainer, pl_module)
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step)
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
        self._sound(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The baseline and the newest audit, as plain values."""
        return {
            "canaries": _fingerprint(self.canaries),
            "baseline": dict(self.baseline),
            "result": None if self.result is None else self.result.to_dict(),
            "alarm": self.alarm,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict` gave.

        Raises:
            ArgumentError: It is from a training with other canaries, or with others held out.
        """
        if state_dict["canaries"] != _fingerprint(self.canaries):
            raise ArgumentError(
                "canaries: other texts, or others held out, than in the training that the checkpoint is from; what was "
                "in once is in the model. Resume with the canaries that the training began with."
            )
        self._restored = True
        result = state_dict["result"]
        self.baseline = dict(state_dict["baseline"])
        self.result = None if result is None else AuditResult.from_dict(result)
        self.alarm = state_dict["alarm"]

    def _audit(self, trainer: Trainer, module: LightningModule) -> dict[str, float]:
        self._audited_at = trainer.global_step
        _check_ledger(trainer, self.canaries)
        scores = self._scores(trainer, module)
        self.result = audit(
            [scores[canary.id] for canary in self.canaries if not canary.held_out],
            [scores[canary.id] for canary in self.canaries if canary.held_out],
            delta=self._delta(trainer),
            confidence=self.confidence,
            records=self.records,
        )
        names = ("epsilon_lower", "auc", "accuracy", "tpr_at_1_percent_fpr", "privacy_loss")
        metrics = {f"{self.name}/{name}": float(getattr(self.result, name)) for name in names}
        promised = _promised_epsilon(trainer)
        self.alarm = promised is not None and self.result.epsilon_lower > promised
        return metrics if promised is None else {**metrics, f"{self.name}/alarm": float(self.alarm)}

    def _scores(self, trainer: Trainer, module: LightningModule) -> dict[str, float]:
        """How much each canary speaks for having been in; computed without regard to whether it was."""
        if self._takes_baseline:
            now = self._bits(trainer, module, "audit")
            return {name: self.baseline[name] - bits for name, bits in now.items()}
        with quiet(module), status(trainer, "audit"):
            found = self._trees.map(trainer, _bits_below_average)
        return {name: bits for part in found.values() for name, bits in part.items()}

    def _bits(self, trainer: Trainer, module: LightningModule, title: str) -> dict[str, float]:
        with quiet(module), status(trainer, title):
            found = self._trees.map(trainer, _bits_of)
        return {name: bits for part in found.values() for name, bits in part.items()}

    def _delta(self, trainer: Trainer) -> float:
        if self.delta is not None:
            return self.delta
        promised = _promised_delta(trainer)
        return _USUAL_DELTA if promised is None else promised

    def _warn_if_small(self, delta: float) -> None:
        count = len(self.canaries)
        largest = largest_provable_epsilon(count, self.confidence, delta=delta, records=self.records)
        if largest < _WORTHWHILE:
            each = "" if self.records == 1 else f", each up to {self.records} records"
            warnings.warn(
                f"The audit has {count} canaries{each}: even if every guess is right, it cannot show that epsilon is "
                f"above {largest:.2g} with a confidence of {self.confidence:g} and a delta of {delta:g}. Draw more of "
                "them, with one repetition each: CanarySet.draw(format, repetitions=[1] * 200, holdout=0.5).",
                AuditWarning,
                stacklevel=2,
            )

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


def audited(canaries: CanarySet) -> CanarySet:
    """The canaries that a coin was tossed for and that are in the training data if it says so.

    Raises:
        ArgumentError: There are none, the coins were not fair, or they all fell on one side.

    Example:
        >>> from lightning_exposure import SecretFormat
        >>> mixed = CanarySet.draw(SecretFormat.pin(), repetitions=[0, 1, 1, 1], seed=0, holdout=0.5)
        >>> [canary.id for canary in audited(mixed)]
        ['pin-1x', 'pin-1x-2', 'pin-1x-3']
    """
    chosen = CanarySet(canary for canary in canaries if canary.holdout and canary.repetitions)
    rates = sorted({canary.holdout for canary in chosen} - {0.5})
    remedy = "draw them with CanarySet.draw(format, repetitions=[1] * 200, holdout=0.5)."
    if not chosen:
        raise ArgumentError(f"canaries: none of the {len(canaries)} was left to a coin; an audit needs that: {remedy}")
    if rates:
        raise ArgumentError(
            f"canaries: held out with a probability of {', '.join(map(str, rates))}; the bound of an audit holds for "
            f"fair coins only: {remedy}"
        )
    if not chosen.held_out or not chosen.inserted:
        side = "held out" if not chosen.held_out else "inserted"
        raise ArgumentError(f"canaries: none of the {len(chosen)} is {side}; an audit compares the two: {remedy}")
    return chosen


def _bits_of(tree: SecretTree, canaries: Sequence[Canary]) -> dict[str, float]:
    costs = score(tree, [canary.text for canary in canaries]).costs.tolist()
    return {canary.id: cost for canary, cost in zip(canaries, costs, strict=True)}


def _bits_below_average(tree: SecretTree, canaries: Sequence[Canary]) -> dict[str, float]:
    """By how much each is cheaper than other secrets of its format: so canaries of several formats can be compared."""
    bits = _bits_of(tree, canaries)
    texts = [canary.text for canary in canaries]
    others = min(_REFERENCES, tree.size - len(texts))
    costs = uniform_walks(tree, others, seed=0, exclude=texts).costs.tolist() if others > 0 else list(bits.values())
    average = math.fsum(costs) / len(costs)
    return {name: average - cost for name, cost in bits.items()}


def _privacy(trainer: Trainer) -> Any | None:
    """The `DifferentialPrivacy` of the trainer, or None."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
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
                f"canaries: {canary.id!r} is in the training data {there} times, according to the datamodule, but the "
                f"audit expects {canary.copies}; give the same CanarySet to both."
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
            f"canaries: {', '.join(seen)} held out, but fetched for training according to the datamodule's ledger; "
            "nothing can be concluded from them. Leave out of the data what has held_out=True."
        )


def _fingerprint(canaries: CanarySet) -> str:
    """Tells sets apart without telling their secrets."""
    return hashlib.sha256(json.dumps(canaries.to_dict(), sort_keys=True).encode()).hexdigest()


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
