"""From the fields of a file to the objects of the other layers, each checked before it is made."""

from __future__ import annotations

from lightning_exposure._files import REMEDY, Field
from lightning_exposure.exposure import ExposureEstimate, SkewNormal
from lightning_exposure.secrets import CanarySet


def read_estimates(field: Field, canaries: CanarySet) -> dict[str, ExposureEstimate]:
    """Estimates by the id of their canary."""
    by_id = {canary.id: canary for canary in canaries}
    estimates = {}
    for key, item in field.entries().items():
        if key not in by_id:
            raise item.error(f"no canary has this id; expected one of {', '.join(by_id)}. {REMEDY}")
        secret = item["secret"]
        if secret.as_(str) != by_id[key].text:
            raise secret.error(f"another secret; expected the text of the canary {key!r}. {REMEDY}")
        estimates[key] = read_estimate(item)
    return estimates


def read_estimate(field: Field) -> ExposureEstimate:
    """One estimate."""
    rank = field["rank"]
    low, high = field["low"].number(finite=True), field["high"].number(finite=True)
    if low > high:
        raise field["low"].refused(f"at most high, which is {high}")
    return ExposureEstimate(
        secret=field["secret"].as_(str),
        bits=field["bits"].number(finite=True),
        low=low,
        high=high,
        method=field["method"].as_(str),
        # An int says that the rank is exact, so it stays one.
        rank=rank.count() if isinstance(rank.value, int) else rank.number(finite=True),
        log_perplexity=field["log_perplexity"].number(),
        size_bits=field["size_bits"].number(finite=True),
        is_bound=field["is_bound"].as_(bool),
        confidence=field["confidence"].number(finite=True),
        expansions=field["expansions"].count(),
        ks_statistic=optional_number(field["ks_statistic"]),
        ks_pvalue=optional_number(field["ks_pvalue"]),
        rests_on=field["rests_on"].as_(str),
        prior_bits=optional_number(field["prior_bits"]),
        margin_bits=optional_number(field["margin_bits"]),
        margin_is_bound=field["margin_is_bound"].as_(bool),
    )


def optional_number(field: Field, *, finite: bool = False) -> float | None:
    """A number, or None where the file says null."""
    given = field.optional()
    return None if given is None else given.number(finite=finite)


def read_fit(field: Field) -> SkewNormal | None:
    """A fitted distribution, or None where the file says null."""
    given = field.optional()
    if given is None:
        return None
    numbers = {name: given[name].number(finite=True) for name in SkewNormal.__dataclass_fields__}
    if numbers["scale"] <= 0:
        raise given["scale"].refused("a positive number")
    return SkewNormal(**numbers)
