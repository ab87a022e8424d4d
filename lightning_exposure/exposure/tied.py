"""How exposed secrets are that stand in the source and in the target of an encoder-decoder.

The cost of a candidate is `-log2 P(its target | its source)`. Every candidate has a source of its own, so a node of a
tree of targets would stand for many sources, and what it costs under one of them bounds nothing under the others: there
is no exact count but to score every pair. That is done where they are few enough. Of many, a uniform sample is scored;
it sees as far as about `log2(samples)` bits, and beyond that there is only the paper's extrapolation.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lightning_exposure.adapters.encoder_decoder.translations import score_translations
from lightning_exposure.errors import ArgumentError, BudgetError
from lightning_exposure.exposure._case import bits_of_rank
from lightning_exposure.exposure._references import rank_among_references, rank_counts
from lightning_exposure.exposure.estimate import METHODS, check_measurement
from lightning_exposure.exposure.intervals import normal_margin
from lightning_exposure.exposure.result import ExposureEstimate
from lightning_exposure.exposure.skewnormal import SkewNormal, warn_if_poor
from lightning_exposure.secrets.formats.drawing import distinct_integers, generator_from
from lightning_exposure.secrets.formats.tied import TiedFormats
from lightning_exposure.walks import Rounding

Encode = Callable[[str], Sequence[int]]
"""Makes token ids of a text."""

_CHUNK = 2**14
"""How many pairs are written out at a time."""


@dataclass(frozen=True)
class _Case:
    """Different secrets, scored, and how to measure them."""

    score: Callable[[Sequence[int]], NDArray[np.float64]]
    formats: TiedFormats
    secrets: list[str]
    numbers: list[int]
    costs: NDArray[np.float64]
    rounding: Rounding
    budget: int
    samples: int
    seed: int
    confidence: float

    def references(self) -> NDArray[np.float64]:
        """The costs of secrets drawn uniformly from all others."""
        count = min(self.samples, self.formats.size - len(self.secrets))
        return self.score(
            distinct_integers(count, self.formats.size, generator_from(self.seed), exclude=set(self.numbers))
        )

    def estimate(
        self, i: int, method: str, rank: int | float, interval: tuple[float, float], scored: int, rests_on: str
    ) -> ExposureEstimate:
        """An estimate from a rank and an interval of ranks."""
        size_bits = self.formats.bits
        return ExposureEstimate(
            secret=self.secrets[i],
            bits=bits_of_rank(rank, size_bits),
            low=bits_of_rank(interval[1], size_bits),
            high=bits_of_rank(interval[0], size_bits),
            method=method,
            rank=rank,
            log_perplexity=float(self.costs[i]),
            size_bits=size_bits,
            is_bound=False,
            confidence=self.confidence,
            expansions=len(self.secrets) + scored,
            rests_on=rests_on,
        )

    def counted(self, i: int, counts: tuple[int, int, int], scored: int) -> ExposureEstimate:
        """An estimate from how many others are as cheap: by their costs, for certain, and perhaps."""
        rank, fewest, most = (1 + count for count in counts)
        if fewest == most:
            return self.estimate(i, "exact", most, (most, most), scored, "the cost of every pair")
        rests_on = f"the cost of every pair; {most - fewest:,} ties are within rounding"
        return self.estimate(i, "counted", min(most, max(fewest, rank)), (fewest, most), scored, rests_on)


def measure_tied_exposure(
    model: nn.Module,
    formats: TiedFormats,
    secrets: Sequence[str],
    *,
    encode_source: Encode,
    encode_target: Encode,
    method: str = "auto",
    budget: int = 100_000,
    samples: int = 4096,
    seed: int = 0,
    confidence: float = 0.95,
    start: int | None = None,
    batch_size: int = 1024,
) -> list[ExposureEstimate]:
    """The exposure of secrets that stand in source and target, in the order given.

    The whole target is priced, with its prompt: what the prompt costs depends on the source, which differs from
    candidate to candidate. A model that only copies what the source says prices all pairs much alike, so a secret it
    never saw lands on a random rank; one it saw is cheaper than its like.

    Where a part of the secret is known, write it into both formats: what is left may be few enough to be counted.

    Args:
        model: An encoder-decoder, as for `Seq2SeqAdapter`.
        formats: What source and target look like.
        secrets: Complete targets.
        encode_source: Makes of a source the token ids that the model was trained to read.
        encode_target: The same for targets, without the token that they begin with.
        method: "exact": every pair is scored. "sampling": rank among pairs drawn uniformly. "skewnormal": the paper's
            extrapolation from such a sample. "auto": "exact" if the budget suffices, otherwise "sampling".
        budget: The largest number of pairs an exact count may score.
        samples: How many pairs an estimate scores.
        seed: Of the sample.
        confidence: Of the intervals.
        start: The token that targets begin with; None: what the model says.
        batch_size: How many pairs the model reads at once.

    Returns:
        Estimates as of `measure_exposure`; their `expansions` are pairs scored.

    Raises:
        SecretError: A text is not a secret of the target's format.
        ArgumentError: Any other argument is out of range, or the method needs a tree.
        BudgetError: method="exact", and there are more pairs than the budget.

    Example:
        >>> import torch
        >>> from lightning_exposure import SecretFormat
        >>> from lightning_exposure.tokenization import CharTokenizer
        >>> from lightning_exposure.modules import EncoderDecoder
        >>> _ = torch.manual_seed(0)
        >>> letters = CharTokenizer.from_text("_^pin code 0123456789")
        >>> model = EncoderDecoder(vocab_size=letters.vocab_size, hidden_size=8, embedding_size=8)
        >>> formats = TiedFormats(SecretFormat("pin ###"), SecretFormat("code ###"))
        >>> estimate, = measure_tied_exposure(
        ...     model, formats, ["code 123"], encode_source=letters.encode, encode_target=letters.encode
        ... )
        >>> estimate.method, 0 <= estimate.bits <= formats.bits
        ('exact', True)
    """
    _check(formats, secrets, method, budget, samples, confidence)
    distinct = list(dict.fromkeys(secrets))
    if not distinct:
        return []

    def score(numbers: Sequence[int], batch_size: int = batch_size) -> NDArray[np.float64]:
        costs = np.empty(len(numbers))
        for begin in range(0, len(numbers), _CHUNK):
            texts = map(formats.pair, numbers[begin : begin + _CHUNK])
            pairs = [(encode_source(source), encode_target(target)) for source, target in texts]
            costs[begin : begin + _CHUNK] = score_translations(model, pairs, start=start, batch_size=batch_size)
        return costs

    numbers = [formats.target.index(secret) for secret in distinct]
    case = _Case(
        score=score,
        formats=formats,
        secrets=distinct,
        numbers=numbers,
        costs=score(numbers),
        rounding=_rounding(score, formats, numbers),
        budget=budget,
        samples=samples,
        seed=seed,
        confidence=confidence,
    )
    found = {estimate.secret: estimate for estimate in TIED_METHODS[method](case)}
    return [found[secret] for secret in secrets]


def _check(formats: object, secrets: Sequence[str], method: str, budget: int, samples: int, confidence: float) -> None:
    if not isinstance(formats, TiedFormats):
        raise ArgumentError(
            f"formats is {type(formats).__name__}; expected TiedFormats(source, target), one format for each side."
        )
    if isinstance(secrets, str):
        raise ArgumentError(f"secrets is the text {secrets!r}; expected a list of texts: [{secrets!r}].")
    if method in METHODS and method not in TIED_METHODS:
        raise ArgumentError(
            f"method is {method!r}, which walks a tree; but secrets that each have a source of their own form none. "
            f"Use one of {', '.join(map(repr, TIED_METHODS))}, or give all of them one source: "
            "SecretTree(Seq2SeqAdapter(model, source), format, tokenizer)."
        )
    if method not in TIED_METHODS:
        raise ArgumentError(f"method is {method!r}; expected one of {', '.join(map(repr, TIED_METHODS))}.")
    check_measurement(method, budget, samples, confidence)


def _auto(case: _Case) -> list[ExposureEstimate]:
    return _exact(case) if case.formats.size <= case.budget else _sampling(case)


def _exact(case: _Case) -> list[ExposureEstimate]:
    """Score every pair there is."""
    size = case.formats.size
    if size > case.budget:
        raise BudgetError(
            f"budget is {case.budget:,} pairs, and there are {size:,}. Raise it, fix a part of the secret in both "
            "formats, or use method='sampling'."
        )
    costs = case.score(range(size))
    estimates = []
    for i, (number, cost) in enumerate(zip(case.numbers, case.costs, strict=True)):
        costs[number] = cost  # itself, whatever the rounding
        estimates.append(case.counted(i, rank_counts(costs, number, case.rounding), size))
    return estimates


def _sampling(case: _Case) -> list[ExposureEstimate]:
    """Rank among pairs drawn uniformly; the other given secrets are known, and counted as they are."""
    references = case.references()
    drawn, unseen = len(references), case.formats.size - len(case.secrets)
    estimates = []
    for i, cost in enumerate(case.costs):
        known = rank_counts(case.costs, i, case.rounding)
        hits = rank_counts(np.append(references, cost), drawn, case.rounding)
        if drawn == unseen:
            together = tuple(a + b for a, b in zip(known, hits, strict=True))
            estimates.append(case.counted(i, (together[0], together[1], together[2]), drawn))
            continue
        rank, interval, is_bound = rank_among_references(known, hits, drawn, unseen, case.confidence)
        rests_on = f"{drawn:,} pairs drawn uniformly, and nothing else"
        estimate = case.estimate(i, "sampling", rank, interval, drawn, rests_on)
        estimates.append(replace(estimate, is_bound=is_bound))
    return estimates


def _rounding(
    score: Callable[[Sequence[int], int], NDArray[np.float64]], formats: TiedFormats, numbers: Sequence[int]
) -> Rounding:
    """What rounding does to a cost: some pairs scored together, and one by one."""
    tried = [*numbers[:4], *distinct_integers(min(4, formats.size), formats.size, generator_from(0))]
    together, alone = score(tried, len(tried)), score(tried, 1)
    finite = np.isfinite(together) & np.isfinite(alone)
    noise = 4.0 * float(np.abs(together - alone, where=finite, out=np.zeros(len(tried))).max())
    summing = 64.0 * float(np.spacing(together[finite].max(initial=1.0)))
    return Rounding(noise + summing, noise == 0.0)


def _skew_normal(case: _Case) -> list[ExposureEstimate]:
    """The paper's extrapolation; its interval holds only if the log-perplexities really are skew-normal."""
    references = case.references()
    fit = SkewNormal.fit(references)
    warn_if_poor(fit)
    errors = fit.standard_errors(case.costs, references)
    estimates = []
    for i, (bits, error) in enumerate(zip(fit.exposure(case.costs), errors, strict=True)):
        rank = max(sys.float_info.min, 2.0 ** (case.formats.bits - float(bits)))
        margin = normal_margin(float(error), case.confidence) if math.isfinite(error) else case.formats.bits
        estimates.append(
            replace(
                case.estimate(i, "skewnormal", rank, (rank, rank), len(references), "a skew-normal fit"),
                bits=float(bits),
                low=max(0.0, float(bits) - margin),
                high=float(bits) + margin,
                ks_statistic=fit.ks_statistic,
                ks_pvalue=fit.ks_pvalue,
            )
        )
    return estimates


TIED_METHODS = MappingProxyType({"auto": _auto, "exact": _exact, "sampling": _sampling, "skewnormal": _skew_normal})
"""What `measure_tied_exposure` can do."""
