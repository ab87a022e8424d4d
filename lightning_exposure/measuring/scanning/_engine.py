"""`scan_model`: what a model does with each of the secrets that were found in texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from lightning_exposure.adapters import StepModel
from lightning_exposure.adapters.choosing import TriedModels
from lightning_exposure.errors import ExposureError
from lightning_exposure.exposure import ExposureEstimate, PriorProbabilities, measure_exposure
from lightning_exposure.exposure.priors import prior_of_tree
from lightning_exposure.extraction import extract
from lightning_exposure.leakage import LeakEstimate, leak_probability
from lightning_exposure.measuring.scanning._found import FoundSecret, distinct_secrets
from lightning_exposure.measuring.scanning._settings import ScanSettings
from lightning_exposure.measuring.surroundings import Alone, Surroundings
from lightning_exposure.measuring.trees import share_out
from lightning_exposure.report.scan import Scan, ScannedSecret
from lightning_exposure.report.verdicts import is_exact
from lightning_exposure.secrets import SecretFormat
from lightning_exposure.secrets.scanner import Finding
from lightning_exposure.tokenization import Tokenizer
from lightning_exposure.tokenization.spelling import Spelling
from lightning_exposure.tree import SecretTree

Counted = Callable[[int, int], None]
"""Called with how many secrets are done, and how many there are."""

_HOPELESS = 1000.0
"""No search for a secret if a sample says that this many times as many as are looked for are likelier."""


@dataclass(frozen=True)
class Reference:
    """A model that has not seen the texts.

    Attributes:
        model: The model.
        tokenizer: How it reads text; None: as the model that is scanned does.
    """

    model: nn.Module | StepModel
    tokenizer: Tokenizer | Any | None = None


@dataclass(frozen=True)
class _Measured:
    """What was measured of one text; None where something could not be."""

    estimate: ExposureEstimate | None = None
    leak: LeakEstimate | None = None
    extracted: bool | None = None
    trouble: str = ""


def scan_model(
    findings: Sequence[Finding] | Mapping[str, Sequence[Finding]],
    model: nn.Module | StepModel,
    tokenizer: Tokenizer | Any,
    reference: nn.Module | StepModel | Reference | None = None,
    settings: ScanSettings | None = None,
    *,
    around: Surroundings | None = None,
    on_count: Counted | None = None,
) -> Scan:
    """Measure every secret that was found: exposure, probability of a leak, and whether an attack finds it.

    A secret that cannot be measured, for example because the tokenizer cannot spell it, is a row that says why. Secrets
    of one format behind one prompt share their tree and its walks.

    Args:
        findings: As `Scanner.find` gave them; of several texts, by the names of the texts.
        model: What was trained on the texts.
        tokenizer: How it reads text.
        reference: A model that has not seen the texts: exposures are then against its prior, and calibrated.
        settings: How to measure.
        around: Shares the work out over the processes of a run; None: one process.
        on_count: Called with how many secrets are done, and how many there are.

    Example:
        >>> import torch
        >>> from lightning_exposure import CharTokenizer
        >>> from lightning_exposure.secrets import Scanner
        >>> text = "my ssn is 536-90-4399. your ssn is 219-09-9991."
        >>> letters = CharTokenizer.from_text(text, "0123456789")
        >>> model = torch.nn.Embedding(letters.vocab_size, letters.vocab_size)
        >>> scan = scan_model(Scanner().find(text), model, letters)
        >>> [(row.kind, row.occurrences, row.extracted) for row in scan.rows]
        [('ssn', 1, False), ('ssn', 1, False)]
        >>> scan.calibrated, round(scan.threshold_bits, 2)
        (False, 5.32)
    """
    settings = ScanSettings() if settings is None else settings
    found = distinct_secrets(findings)
    wanted = found[: settings.limit]
    given = Reference(reference) if reference is not None and not isinstance(reference, Reference) else reference
    engine = _Engine(model, tokenizer, given, settings, wanted)
    measured = engine.measure(Alone() if around is None else around, on_count)
    return Scan(
        rows=tuple(_row(secret, settings.contexts, measured) for secret in wanted),
        calibrated=reference is not None,
        alpha=settings.alpha,
        confidence=settings.confidence,
        left_out=len(found) - len(wanted),
        settings=settings.to_dict(),
    )


class _Engine:
    """One scan under way."""

    def __init__(
        self,
        model: nn.Module | StepModel,
        tokenizer: Tokenizer | Any,
        reference: Reference | None,
        settings: ScanSettings,
        secrets: Sequence[FoundSecret],
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._reference = reference
        self._settings = settings
        self._tried = TriedModels()
        self._groups: dict[SecretFormat, list[str]] = {}
        self._without_format: dict[str, _Measured] = {}
        for secret in secrets:
            for finding in secret.contexts[: settings.contexts]:
                self._add(finding)
        # All intervals hold together: the error that is allowed is shared out.
        tests = max(1, sum(map(len, self._groups.values())))
        self._confidence = 1.0 - (1.0 - settings.confidence) / tests

    def _add(self, finding: Finding) -> None:
        try:
            texts = self._groups.setdefault(finding.secret_format(), [])
        except ExposureError as error:
            self._without_format[finding.secret] = _Measured(trouble=_why(error))
            return
        if finding.secret not in texts:
            texts.append(finding.secret)

    def measure(self, around: Surroundings, on_count: Counted | None) -> dict[str, _Measured]:
        """All texts, by the text."""
        total, done = sum(map(len, self._groups.values())), 0

        def work(format: SecretFormat) -> dict[str, _Measured]:
            nonlocal done
            measured = self._measure_group(format, self._groups[format])
            done += len(measured)
            if on_count is not None:
                on_count(done, total)
            return measured

        found = dict(self._without_format)
        for part in share_out(around, list(self._groups), work):
            found |= part
        return found

    def _measure_group(self, format: SecretFormat, texts: list[str]) -> dict[str, _Measured]:
        """The secrets of a tree; if one of them spoils the measurement, each by itself."""
        try:
            tree, prior = self._trees(format)
            estimates = self._exposures(tree, prior, texts)
        except ExposureError as error:
            if len(texts) == 1:
                return {texts[0]: _Measured(trouble=_why(error))}
            return {text: self._measure_group(format, [text])[text] for text in texts}
        leaks, no_leaks = self._leaks(tree, texts)
        extracted, no_search = self._extracted(tree, texts, estimates)
        trouble = " ".join(filter(None, (no_leaks, no_search)))
        return {text: _Measured(estimates[text], leaks.get(text), extracted.get(text), trouble) for text in texts}

    def _trees(self, format: SecretFormat) -> tuple[SecretTree, SecretTree | PriorProbabilities | None]:
        """The tree of the model, and the prior."""
        settings = self._settings
        options: dict[str, Any] = {"batch_size": settings.batch_size, "tried": self._tried}
        spelling = Spelling(format, self._tokenizer)
        tree = SecretTree(self._model, format, spelling, context=settings.context, **options)
        if self._reference is None:
            return tree, None
        other = self._reference.tokenizer
        if other is None or other is self._tokenizer:
            return tree, SecretTree(self._reference.model, format, spelling, context=settings.context, **options)
        reference = SecretTree(self._reference.model, format, Spelling(format, other), **options)
        return tree, prior_of_tree(reference, tree)

    def _exposures(
        self, tree: SecretTree, prior: SecretTree | PriorProbabilities | None, texts: list[str]
    ) -> dict[str, ExposureEstimate]:
        settings = self._settings
        estimates = measure_exposure(
            tree,
            texts,
            budget=settings.budget,
            samples=settings.samples,
            seed=settings.seed,
            prior=prior,
            precision=settings.precision,
            confidence=self._confidence,
        )
        return dict(zip(texts, estimates, strict=True))

    def _leaks(self, tree: SecretTree, texts: list[str]) -> tuple[dict[str, LeakEstimate], str]:
        try:
            leaks = leak_probability(tree, texts, self._settings.decoder, budget=self._settings.budget)
        except ExposureError as error:
            return {}, f"No leak probability: {_why(error)}"
        return dict(zip(texts, leaks, strict=True)), ""

    def _extracted(
        self, tree: SecretTree, texts: list[str], estimates: Mapping[str, ExposureEstimate]
    ) -> tuple[dict[str, bool], str]:
        """Which secrets are among the likeliest of their tree, as many as are in the texts."""
        many = len(texts)
        known = {text: _among_the_first(estimates[text], many) for text in texts}
        if None not in known.values():
            return {text: bool(value) for text, value in known.items()}, ""
        try:
            attack = extract(tree, "shortest_path", many, budget=self._settings.budget)
        except ExposureError as error:
            return {text: value for text, value in known.items() if value is not None}, f"No search: {_why(error)}"
        found = {candidate.text for candidate in attack.candidates}
        return {text: text in found if value is None else value for text, value in known.items()}, ""


def _among_the_first(estimate: ExposureEstimate, many: int) -> bool | None:
    """Whether a secret is among the likeliest ones, as far as its measurement tells."""
    if is_exact(estimate):
        return estimate.rank <= many
    return False if not estimate.is_bound and estimate.rank > _HOPELESS * many else None


def _row(secret: FoundSecret, contexts: int, measured: Mapping[str, _Measured]) -> ScannedSecret:
    """A secret in the context where it is most exposed."""
    pairs = [(finding, measured[finding.secret]) for finding in secret.contexts[:contexts]]
    row = ScannedSecret(secret.kind, secret.text, secret.same, secret.occurrences, secret.places)
    trouble = " ".join(dict.fromkeys(each.trouble for _, each in pairs if each.trouble))
    exposed = [(each.estimate.low, finding, each.estimate) for finding, each in pairs if each.estimate is not None]
    if not exposed:
        return replace(row, trouble=trouble, prompt=pairs[0][0].prompt)
    _, finding, estimate = max(exposed, key=lambda entry: entry[0])
    leaks = [each.leak for _, each in pairs if each.leak is not None]
    tried = [each.extracted for _, each in pairs if each.extracted is not None]
    return replace(
        row,
        text=finding.text,
        contexts=len(exposed),
        estimate=estimate,
        leak=max(leaks, key=lambda leak: leak.low, default=None),
        extracted=any(tried) if tried else None,
        trouble=trouble,
        prompt=finding.prompt,
    )


def _why(error: ExposureError) -> str:
    return " ".join(str(error).split())
