"""`ScanMonitor`: the secrets in the texts that a model is being trained on, measured while it trains."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from lightning_exposure._checks import metric_name, refusal
from lightning_exposure._files import plain
from lightning_exposure.adapters import StepModel
from lightning_exposure.errors import ArgumentError, ExposureError
from lightning_exposure.exposure import weights_of_checkpoint, weights_on_cpu, with_weights, without_adapters
from lightning_exposure.measuring._quiet import quiet
from lightning_exposure.measuring.prior import share_weights
from lightning_exposure.measuring.scanning._engine import scan_model
from lightning_exposure.measuring.scanning._settings import ScanSettings
from lightning_exposure.measuring.schedule import Schedule
from lightning_exposure.measuring.surroundings import Moment, Surroundings
from lightning_exposure.measuring.tracebacks import without_locals
from lightning_exposure.measuring.trees import ModelOf, check_pick
from lightning_exposure.report.record import RunRecord
from lightning_exposure.report.scan import Scan
from lightning_exposure.secrets.scanner import Finding
from lightning_exposure.tokenization import Tokenizer
from lightning_exposure.tokenization.spelling import Spelling
from lightning_exposure.tree import SecretTree

ReferenceSource = nn.Module | StepModel | str | Path | Literal["before_training", "without_adapters"]
"""Where a reference comes from: a module, a checkpoint, the weights of before, or the model without its adapters."""

_WORDS = ("before_training", "without_adapters")

_UNTRAINED = 0.9
"""A model to which nearly all tokens are alike has learnt nothing yet."""

_KNOWS_NOTHING = (
    "reference is 'before_training', and the model begins with weights that tell hardly any two tokens apart. Such a "
    "reference knows no birthdays and no area codes, and every one of them looks memorized. Give a "
    "model trained on other texts."
)


class UntrainedReferenceWarning(UserWarning):
    """The weights that training begins with are no reference if they are random."""


class ScanMonitor:
    """Scans a model while or after it trains, whatever trains it.

    Call `begin` before the first step, `after_epoch` after each epoch, and `finish` when training has ended.

    Args:
        schedule: When to scan.
        settings: How to measure.
        reference: A model that has not seen the texts; "before_training": the weights that training began with,
            for a model that was pretrained on other texts; "without_adapters": the model with its adapters off; the
            path of a checkpoint of the same module; None: nothing is calibrated.
        model: Picks the next-token model out of the module that is being trained; None: the module itself.
        name: The first part of the metrics' names.

    Attributes:
        findings: What was found in the texts, by the names of the texts.
        scan: The newest scan; None if there was none.
        history: The metrics of every scan, with its epoch and step: numbers only, without any text.
    """

    def __init__(
        self,
        schedule: Schedule,
        settings: ScanSettings,
        *,
        reference: ReferenceSource | None = None,
        model: ModelOf | None = None,
        name: str = "scan",
    ) -> None:
        _check_reference(reference)
        check_pick(model)
        self.schedule = schedule
        self.settings = settings
        self.name = metric_name(name)
        self.findings: Mapping[str, Sequence[Finding]] = {}
        self.scan: Scan | None = None
        self.history: list[dict[str, float]] = []
        self._reference = reference
        self._model = model
        self._tokenizer: Tokenizer | Any = None
        self._weights: Mapping[str, Tensor] | None = None
        self._scanned_at = -1
        self._restored = False

    @without_locals
    def begin(
        self,
        module: nn.Module,
        tokenizer: Tokenizer | Any,
        findings: Mapping[str, Sequence[Finding]],
        *,
        resumed: bool = False,
    ) -> None:
        """Begin a run.

        Args:
            module: The module that is being trained.
            tokenizer: How it reads text.
            findings: What was found in the texts, by the names of the texts.
            resumed: Whether the weights are those of a run that goes on, and not those of before it.

        Raises:
            ArgumentError: The reference cannot be made of this module.
            ModelError: No adapter fits the model or the reference.
        """
        self.findings, self._tokenizer, self.scan, self._scanned_at = findings, tokenizer, None, -1
        if not self._restored:
            self.history, self._weights = [], None
        if self._reference == "before_training":
            if self._weights is None and (resumed or self._restored):
                raise ArgumentError(
                    "reference is 'before_training', and the run that goes on has not kept the weights of before it; "
                    "expected a checkpoint of a run with the same reference. Give the model that was fine-tuned, or "
                    "its checkpoint, as reference."
                )
            self._weights = weights_on_cpu(module) if self._weights is None else self._weights
        elif isinstance(self._reference, str | Path) and self._reference != "without_adapters":
            self._weights = weights_of_checkpoint(self._reference)
        elif isinstance(self._reference, nn.Module) and share_weights(self._reference, module, trained_only=True):
            raise ArgumentError(
                f"reference is {type(self._reference).__name__}, which shares weights with the model that is trained; "
                "expected one that is not. Use 'before_training', or 'without_adapters' for a model of PEFT."
            )
        self._restored = False
        with quiet(module):  # what does not fit shows here, and not after training
            self._try(self._pick(module))
            reference = self._make_reference(module)
            if reference is not None:
                self._try(reference, warn=self._reference == "before_training")

    @without_locals
    def after_epoch(self, module: nn.Module, around: Surroundings, moment: Moment) -> dict[str, float] | None:
        """Scan if the end of an epoch makes it due; the end of training is left to `finish`.

        Returns:
            What was logged; None if nothing was measured.
        """
        if not self.schedule.after_epoch(moment.epoch, last=False):
            return None
        return self._scan(module, around, moment)

    @without_locals
    def finish(self, module: nn.Module, around: Surroundings, moment: Moment) -> dict[str, float] | None:
        """Scan the weights that training ended with, unless that was done.

        Returns:
            What was logged; None if nothing was measured.
        """
        return None if self._scanned_at == moment.step else self._scan(module, around, moment)

    def add_to_record(self, record: RunRecord) -> None:
        """Put the newest scan into the record of the run, masked."""
        if self.scan is not None:
            record.scan = plain(self.scan.to_dict(), "scan")

    def state_dict(self) -> dict[str, Any]:
        """The history, and the weights of a reference that would be lost otherwise; no text."""
        kept = self._weights if self._reference == "before_training" else None
        return {"history": [dict(entry) for entry in self.history], "before_training": kept}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """What `state_dict` gave."""
        self._restored = True
        self.history = [dict(entry) for entry in state_dict["history"]]
        self._weights = state_dict.get("before_training")

    def _scan(self, module: nn.Module, around: Surroundings, moment: Moment) -> dict[str, float]:
        start = time.perf_counter()
        with quiet(module), around.status("scanning") as update:
            self.scan = scan_model(
                self.findings,
                self._pick(module),
                self._tokenizer,
                self._make_reference(module),
                self.settings,
                around=around,
                on_count=lambda done, total: update(f"{done:,} of {total:,} secrets"),
            )
        self._scanned_at = moment.step
        metrics = scan_metrics(self.name, self.scan)
        metrics[f"{self.name}/seconds"] = time.perf_counter() - start
        self.history.append({**metrics, "epoch": float(moment.epoch), "step": float(moment.step)})
        around.log(metrics, moment.step)
        return metrics

    def _try(self, model: nn.Module | StepModel, *, warn: bool = False) -> None:
        """Read the prompt of a secret that the tokenizer can spell.

        Args:
            model: What reads it.
            warn: Whether to warn if all tokens are alike to the model.

        Raises:
            ModelError: No adapter fits the model, or it is not what it seems.
        """
        for finding in (finding for found in self.findings.values() for finding in found):
            try:
                spelling = Spelling(finding.secret_format(), self._tokenizer)
            except ExposureError:
                continue  # it will be a row that says so
            tree = SecretTree(model, spelling.format, spelling, context=self.settings.context)
            tree.root()
            if warn and _entropy(tree) > _UNTRAINED * math.log2(spelling.vocab_size):
                warnings.warn(_KNOWS_NOTHING, UntrainedReferenceWarning, stacklevel=2)
            return

    def _pick(self, module: nn.Module) -> nn.Module | StepModel:
        return module if self._model is None else self._model(module)

    def _make_reference(self, module: nn.Module) -> nn.Module | StepModel | None:
        """The reference, for as long as a scan lasts."""
        if self._reference is None or isinstance(self._reference, nn.Module | StepModel):
            return self._reference
        if self._reference == "without_adapters":
            picked = self._pick(module)
            if not isinstance(picked, nn.Module):
                raise ArgumentError(
                    "reference is 'without_adapters', and model gives a StepModel; expected a module, whose adapters "
                    "can be switched off. Give the reference itself."
                )
            return without_adapters(picked, context=self.settings.context)
        assert self._weights is not None, "begin() has them"
        return self._pick(with_weights(module, self._weights))


def _check_reference(reference: object) -> None:
    """Refuse what no reference can be made of."""
    if reference is None or isinstance(reference, nn.Module | StepModel):
        return
    if isinstance(reference, str | Path) and (
        reference in ("before_training", "without_adapters") or Path(reference).is_file()
    ):
        return
    expected = "a module, the path of a checkpoint, 'before_training', 'without_adapters', or None"
    raise refusal("reference", reference, expected, "Check the path, or load the model and give it as a module.")


def _entropy(tree: SecretTree) -> float:
    """How undecided a model is about the token behind the prompt, in bits."""
    logits, _ = tree.prompt.read()
    logs = logits.detach().double().log_softmax(-1)
    return -float((logs.exp() * logs).nan_to_num().sum()) / math.log(2.0)


def scan_metrics(name: str, scan: Scan) -> dict[str, float]:
    """The numbers of a scan by their names; none of them says anything about a single secret's text.

    >>> scan_metrics("scan", Scan((), calibrated=True, alpha=0.05, confidence=0.95))["scan/memorized"]
    0.0
    """
    estimates = [row.estimate for row in scan.measured if row.estimate is not None]
    metrics = {
        f"{name}/secrets": float(len(scan.rows)),
        f"{name}/failed": float(len(scan.rows) - len(estimates)),
        f"{name}/above_threshold": float(sum(map(scan.is_above, scan.rows))),
        f"{name}/extracted": float(sum(bool(row.extracted) for row in scan.rows)),
        f"{name}/threshold": scan.threshold_bits,
    }
    if scan.calibrated:
        metrics[f"{name}/memorized"] = float(len(scan.memorized))
    if estimates:
        metrics[f"{name}/exposure_max"] = max(estimate.bits for estimate in estimates)
        metrics[f"{name}/exposure_low_max"] = max(estimate.low for estimate in estimates)
    leaks = [row.leak for row in scan.rows if row.leak is not None]
    if leaks:
        metrics[f"{name}/leak_low_max"] = max(leak.low for leak in leaks)
        metrics[f"{name}/leak_high_max"] = max(leak.high for leak in leaks)
    return metrics
