"""How a scan measures."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from lightning_exposure._checks import check_confidence, instance, number, whole_number
from lightning_exposure.exposure.estimate import check_measurement
from lightning_exposure.leakage import Decoder


@dataclass(frozen=True)
class ScanSettings:
    """How a scan measures.

    Attributes:
        alpha: The probability that any secret at all is called memorized although it is not.
        confidence: The confidence level of all intervals together: each of N gets 1 - (1 - confidence) / N.
        budget: The largest number of expansions of each exact count, leak and search.
        samples: The largest number of walks of an estimate.
        precision: Stop as soon as every interval is at most this many bits wide; None: do not.
        decoder: How text is taken to be sampled.
        limit: The largest number of secrets that are measured, those that occur most often; None: all.
        contexts: In how many of its contexts (prompts and spellings) a secret is measured at most.
        seed: The random seed of the walks.
        context: For a model without a state: how many of the last tokens it is given; None: all.
        batch_size: The largest number of nodes the model reads at once.

    Raises:
        ArgumentError: One of them is out of range; it is named.
    """

    alpha: float = 0.05
    confidence: float = 0.95
    budget: int = 20_000
    samples: int = 2048
    precision: float | None = 0.5
    decoder: Decoder = field(default_factory=Decoder)
    limit: int | None = None
    contexts: int = 3
    seed: int = 0
    context: int | None = None
    batch_size: int = 4096

    def __post_init__(self) -> None:
        """Refuse what no scan can work with."""
        number("alpha", self.alpha, above=0, below=1, remedy="For example 0.05.")
        check_confidence(self.confidence)
        check_measurement(
            "auto",
            whole_number("budget", self.budget, at_least=1),
            whole_number("samples", self.samples, at_least=1),
            self.confidence,
            self.precision,
        )
        instance("decoder", self.decoder, Decoder, "a Decoder", "For example Decoder(temperature=0.7).")
        if self.limit is not None:
            whole_number("limit", self.limit, at_least=1, remedy="Leave it out to measure all of them.")
        if self.context is not None:
            whole_number("context", self.context, at_least=1, remedy="It counts tokens; None is all of them.")
        whole_number("contexts", self.contexts, at_least=1)
        whole_number("seed", self.seed, at_least=0)
        whole_number("batch_size", self.batch_size, at_least=1)

    def to_dict(self) -> dict[str, Any]:
        """All attributes, for JSON."""
        return asdict(self)
