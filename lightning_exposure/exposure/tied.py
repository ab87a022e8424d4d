"""How exposed secrets are that occur in the source and in the target of an encoder-decoder.

The cost of a candidate is `-log2 P(its target | its source)`. Every candidate has a source of its own, so a node of a
tree of targets would stand for many sources, and what it costs under one of them bounds nothing under the others: there
is no exact count but to score every pair. That is done where they are few enough. Of many, a uniform sample is scored;
it sees as far as about `log2(samples)` bits, and beyond that there is only the paper's extrapolation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lightning_exposure._checks import check_texts, choice
from lightning_exposure.adapters.encoder_decoder.translations import score_translations
from lightning_exposure.errors import ArgumentError, BudgetError
from lightning_exposure.exposure._case import Case, measure_possible
from lightning_exposure.exposure.estimate import check_measurement
from lightning_exposure.exposure.methods import METHODS, measure_by_sampling, measure_by_skew_normal, rank_counts
from lightning_exposure.exposure.result import ExposureEstimate
from lightning_exposure.secrets.formats.drawing import distinct_integers, generator_from
from lightning_exposure.secrets.formats.tied import TiedFormats
from lightning_exposure.walks import Rounding, UniformSample

TiedMethodName = Literal["auto", "exact", "sampling", "skewnormal"]
"""The methods that need no tree."""

Encode = Callable[[str], Sequence[int]]
"""Makes token ids of a text."""

_CHUNK = 2**14
"""How many pairs are written out at a time."""


@dataclass(frozen=True)
class PairCase(Case):
    """Secrets that each have a source of their own.

    Attributes:
        formats: What source and target look like.
        numbers: Which pairs the secrets are.
        score: What the pairs of some numbers cost.
    """

    formats: TiedFormats
    numbers: list[int]
    score: Callable[[Sequence[int]], NDArray[np.float64]]

    noun: ClassVar[str] = "pairs"

    @property
    def size(self) -> int:
        """|R|."""
        return self.formats.size

    @property
    def size_bits(self) -> float:
        """log2 |R|."""
        return self.formats.bits

    def references(self, seed: int) -> UniformSample:
        """Pairs drawn uniformly from all others, scored."""
        count = min(self.samples, self.size - len(self))
        numbers = distinct_integers(count, self.size, generator_from(seed), exclude=set(self.numbers))
        return UniformSample([self.formats.pair(number)[1] for number in numbers], self.score(numbers), count)

    def only(self, which: Sequence[int]) -> PairCase:
        """The same for some of the secrets."""
        return replace(
            self,
            secrets=[self.secrets[i] for i in which],
            numbers=[self.numbers[i] for i in which],
            costs=self.costs[list(which)],
        )


def measure_tied_exposure(
    model: nn.Module,
    formats: TiedFormats,
    secrets: Sequence[str],
    *,
    encode_source: Encode,
    encode_target: Encode,
    method: TiedMethodName | str = "auto",
    budget: int = 100_000,
    samples: int = 4096,
    seed: int = 0,
    confidence: float = 0.95,
    start: int | None = None,
    batch_size: int = 1024,
) -> list[ExposureEstimate]:
    """The exposure of secrets that occur in source and target, in the order given.

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
        seed: The random seed of the sample.
        confidence: The confidence level of the intervals.
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
    case = PairCase(
        secrets=distinct,
        costs=score(numbers),
        rounding=_rounding(score, formats, numbers),
        expansions=len(distinct),
        budget=budget,
        samples=samples,
        seed=seed,
        confidence=confidence,
        formats=formats,
        numbers=numbers,
        score=score,
    )
    return measure_possible(case, secrets, TIED_METHODS[method])


def _check(formats: object, secrets: Sequence[str], method: str, budget: int, samples: int, confidence: float) -> None:
    if not isinstance(formats, TiedFormats):
        raise ArgumentError(
            f"formats is {type(formats).__name__}; expected TiedFormats(source, target), one format for each side."
        )
    check_texts("secrets", secrets)
    if method in METHODS and method not in TIED_METHODS:
        raise ArgumentError(
            f"method is {method!r}, which walks a tree; expected one of {', '.join(map(repr, TIED_METHODS))}, because "
            "secrets that each have a source of their own form none. Or give all of them one source: "
            "SecretTree(Seq2SeqAdapter(model, source), format, tokenizer)."
        )
    choice("method", method, TIED_METHODS)
    check_measurement(method, budget, samples, confidence)


def _auto(case: PairCase) -> list[ExposureEstimate]:
    return _exact(case) if case.size <= case.budget else measure_by_sampling(case)


def _exact(case: PairCase) -> list[ExposureEstimate]:
    """Score every pair there is."""
    if case.size > case.budget:
        raise BudgetError(
            f"budget is {case.budget:,} pairs, and there are {case.size:,}. Raise it, fix a part of the secret in both "
            "formats, or use method='sampling'."
        )
    costs = case.score(range(case.size))
    estimates = []
    for i, (number, cost) in enumerate(zip(case.numbers, case.costs, strict=True)):
        costs[number] = cost  # itself, whatever the rounding
        rank, fewest, most = (1 + count for count in rank_counts(costs, number, case.rounding))
        estimate = case.counted(i, (rank, fewest, most), case.size)
        if most == 1 and case.size > 1:
            ahead = float(np.delete(costs, number).min() - cost)
            estimate = replace(estimate, margin_bits=ahead if math.isfinite(ahead) else None)
        estimates.append(estimate)
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


TIED_METHODS: Mapping[str, Callable[[PairCase], list[ExposureEstimate]]] = MappingProxyType(
    {"auto": _auto, "exact": _exact, "sampling": measure_by_sampling, "skewnormal": measure_by_skew_normal}
)
"""What `measure_tied_exposure` can do."""
