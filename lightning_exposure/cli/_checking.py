"""What `check` decides by: the record of a run as far as it goes, and the model itself where it does not."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightning_exposure._checks import slug
from lightning_exposure.cli._console import spinner
from lightning_exposure.cli._formats import make_format
from lightning_exposure.cli._given_texts import format_of, read_given
from lightning_exposure.cli._runs import CANARIES, CHECKPOINT
from lightning_exposure.cli.models import LoadedModel, load_any_model, load_reference
from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import ExposureEstimate, measure_exposure
from lightning_exposure.exposure.priors import prior_of_tree
from lightning_exposure.measuring import Alone
from lightning_exposure.measuring.gate import EXCEEDED, WITHIN, Bounds, GateKeeper, bounds_of
from lightning_exposure.report.limits.check import CheckedPart, CheckResult
from lightning_exposure.report.record import FILE_NAME, RunRecord
from lightning_exposure.report.verdicts import is_certain
from lightning_exposure.secrets import Canary, CanarySet
from lightning_exposure.tree import SecretTree

NEVER = "never inserted"


@dataclass(frozen=True)
class Known:
    """What there is to decide by, before anything is measured.

    Attributes:
        canaries: What is looked for.
        estimates: Exposures by the id of the canary; None: they have to be measured.
        record: Of the run; None: it is a model only.
        prior: What the exposures of the record were measured against.
    """

    canaries: CanarySet
    estimates: Mapping[str, ExposureEstimate] | None
    record: RunRecord | None = None
    prior: str | None = None


class Model:
    """The model that is checked, read when it is needed."""

    def __init__(self, options: Namespace, known: Known) -> None:
        self._options = options
        self._known = known
        self._loaded: LoadedModel | None = None
        self._reference: LoadedModel | None = None
        self._trees: dict[str, tuple[SecretTree, Any]] = {}

    @property
    def loaded(self) -> LoadedModel:
        """The model."""
        if self._loaded is None:
            options = self._options
            if self._known.prior is not None and options.reference is None:
                raise ArgumentError(
                    f"--reference is not given, and the record was measured against a prior ({self._known.prior}); "
                    "expected the same reference model, because this run has to be measured again. Add --reference "
                    "PATH."
                )
            self._loaded = load_any_model(
                options.model, options.device, option="RUN_OR_MODEL", model_class=options.model_class,
                tokenizer=options.tokenizer,
            )  # fmt: skip
            self._reference = load_reference(options, self._loaded)
        return self._loaded

    def measure(
        self, canaries: Sequence[Canary], *, effort: int = 1, error: float, seed: int
    ) -> dict[str, ExposureEstimate]:
        """Their exposures, by id."""
        found: dict[str, ExposureEstimate] = {}
        for format_, members in CanarySet(canaries).by_format().items():
            tree, prior = self._tree(members[0])
            with spinner(f"measuring {format_.name}") as update:
                estimates = measure_exposure(
                    tree,
                    [canary.text for canary in members],
                    "auto",
                    effort * self._options.budget,
                    effort * self._options.samples,
                    seed,
                    prior=prior,
                    precision=0.25 / effort**0.5,
                    confidence=1.0 - error,
                    progress=lambda expansions, *_, update=update: update(f"{expansions:,} nodes read"),
                )
            found |= {canary.id: each for canary, each in zip(members, estimates, strict=True)}
        return found

    def _tree(self, canary: Canary) -> tuple[SecretTree, Any]:
        format_ = canary.format
        if format_.name not in self._trees:
            tree = self.loaded.tree(format_)
            reference = self._reference
            prior = None if reference is None else prior_of_tree(reference.tree(format_), tree)
            self._trees[format_.name] = tree, prior
        return self._trees[format_.name]


def what_is_known(options: Namespace) -> Known:
    """The record of a run, or the canaries and secrets that were named.

    Raises:
        ArgumentError: There is neither.
    """
    path = Path(options.model)
    record_path = (path if path.is_dir() else path.parent) / FILE_NAME
    given = _given_canaries(options)
    record = RunRecord.load(record_path) if record_path.exists() and path.exists() else None
    if given is not None:
        return Known(given, None, record)
    if record is None:
        if options.max_exposure is None:
            return Known(CanarySet([]), {})
        beside = (path if path.is_dir() else path.parent) / CANARIES
        if not beside.exists():
            raise ArgumentError(
                f"RUN_OR_MODEL is {options.model!r}, which has no {FILE_NAME} and no {CANARIES}; expected what to "
                "look for. Add --canaries FILE, or --format FORMAT --secret TEXT."
            )
        return Known(CanarySet.load(beside), None)
    estimates: dict[str, ExposureEstimate] = {}
    for name, part in {"": record, **record.others}.items():
        estimates |= _current(name, part)
    canaries = _all_canaries(record)
    prior = next((part.final.prior for part in _parts(record) if part.final is not None), None)
    # Only the last weights of a run are those of its record.
    covered = path.is_dir() or path.name == CHECKPOINT
    covered = covered and all(
        canary.id in estimates and _is_sure_enough(estimates[canary.id], options.confidence) for canary in canaries
    )
    return Known(canaries, estimates if covered else None, record, prior)


def _parts(record: RunRecord) -> list[RunRecord]:
    return [record, *record.others.values()]


def _current(name: str, record: RunRecord) -> dict[str, ExposureEstimate]:
    """What was measured last, unless the weights were trained on since."""
    final = record.final
    if final is None or record.steps not in (None, final.step):
        return {}
    return {_id(name, key): estimate for key, estimate in final.estimates.items()}


def _all_canaries(record: RunRecord) -> CanarySet:
    """Those of all callbacks that measured; each text once, by the first."""
    found: dict[str, Canary] = {}
    for name, part in {"": record, **record.others}.items():
        for canary in part.canaries:
            found.setdefault(canary.text, canary.replace(id=_id(name, canary.id)))
    return CanarySet(list(found.values()))


def _id(name: str, canary: str) -> str:
    return f"{slug(name)}.{canary}" if name else canary


def _is_sure_enough(estimate: ExposureEstimate, confidence: float) -> bool:
    return is_certain(estimate) or estimate.confidence >= confidence


def _given_canaries(options: Namespace) -> CanarySet | None:
    if options.secret is not None:
        if options.format is None:
            raise ArgumentError(
                "--secret is given without --format; expected what it looks like. Add --format, such as --format "
                "'my code is ####'."
            )
        format_ = make_format(options.format)
        texts = read_given(options.secret, "--secret")
        for place, text in enumerate(texts, start=1):
            format_of(text, [format_], "--secret", f"number {place} of {len(texts)}")
        return CanarySet([Canary(f"secret-{place}", text, format_, 1) for place, text in enumerate(texts, start=1)])
    if options.format is not None:
        raise ArgumentError(
            "--format is given without --secret; expected both, because canaries have formats of their own. Add "
            "--secret TEXT, or leave it out."
        )
    return None if options.canaries is None else CanarySet.load(options.canaries)


def check(options: Namespace) -> CheckResult:
    """Decide, and measure as far as that needs."""
    known = what_is_known(options)
    known.canaries.refuse_made_for_audits()
    keeper = GateKeeper(
        max_bits=options.max_exposure,
        max_epsilon=options.max_epsilon,
        confidence=options.confidence,
        max_effort=options.max_effort,
        seed=options.seed,
        name="check",
    )
    parts = [] if options.max_exposure is None else _exposures(options, known, keeper)
    answer, reason = keeper.answer, keeper.reason
    if options.max_epsilon is not None:
        part, why = _epsilon(known.record, options.max_epsilon)
        parts.append(part)
        if answer != EXCEEDED and (part.answer == EXCEEDED or answer is None):
            answer, reason = (EXCEEDED if part.answer == EXCEEDED else WITHIN), why
    limits = {"max_exposure": options.max_exposure, "max_epsilon": options.max_epsilon}
    given = {name: float(limit) for name, limit in limits.items() if limit is not None}
    assert answer is not None
    return CheckResult(str(options.model), answer, reason, given, options.confidence, parts)


def _exposures(options: Namespace, known: Known, keeper: GateKeeper) -> list[CheckedPart]:
    by_id = {canary.id: canary for canary in known.canaries}
    ceilings = [
        None if known.prior or options.reference else math.log2(canary.format.size)
        for canary in known.canaries
        if canary.copies
    ]
    keeper.check_limit(ceilings, Alone(), name="--max_exposure")
    model = Model(options, known)
    estimates = known.estimates
    if estimates is None:
        estimates = model.measure(list(known.canaries), error=1.0 - options.confidence, seed=options.seed)

    def measure(ids: Sequence[str], effort: int, error: float) -> dict[str, Bounds]:
        words = [options.seed, effort, keeper.spending.confirmations]
        seed = int(np.random.SeedSequence([7, *words]).generate_state(1)[0])  # not those that were drawn before
        found = model.measure([by_id[key] for key in ids], effort=effort, error=error, seed=seed)
        return {key: bounds_of(estimate) for key, estimate in found.items()}

    step = 0 if known.record is None or known.record.steps is None else known.record.steps
    keeper.decide(known.canaries, estimates, measure, step, Alone())
    return [_part(canary, keeper, estimates[canary.id]) for canary in known.canaries]


def _part(canary: Canary, keeper: GateKeeper, estimate: ExposureEstimate) -> CheckedPart:
    limit = keeper.max_bits
    assert limit is not None
    low, high, _ = bounds_of(estimate) if not canary.copies else keeper.bounds[canary.id]
    value = f"{low:.2f} bits" if low == high else f"{low:.2f} to {high:.2f} bits"
    answer = "within" if high <= limit else "exceeded" if low > limit else "undecided"
    return CheckedPart(canary.id, value, answer if canary.copies else NEVER, canary.copies)


def _epsilon(record: RunRecord | None, limit: float) -> tuple[CheckedPart, str]:
    """What a record says of epsilon."""
    if record is None:
        raise ArgumentError(
            f"--max_epsilon is {limit:g}, and there is no record of a run; expected the directory of one, because a "
            "model alone does not tell how it was trained. Leave it out, or give the run."
        )
    if record.privacy is None:
        return CheckedPart("epsilon", "none", EXCEEDED), (
            f"the run was trained without differential privacy, so that no epsilon is within the limit of {limit:g}"
        )
    epsilon = float(record.privacy["epsilon"])
    answer = EXCEEDED if epsilon > limit else WITHIN
    where = "above" if epsilon > limit else "within"
    shown = "infinite" if math.isinf(epsilon) else f"{epsilon:.4g}"
    return CheckedPart("epsilon", shown, answer), f"epsilon is {shown}, {where} the limit of {limit:g}"
