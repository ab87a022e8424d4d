"""From the fields of a file to the objects of the other layers, each checked before it is made."""

from __future__ import annotations

from typing import Any

from lightning_exposure.exposure import ExposureEstimate, SkewNormal
from lightning_exposure.extraction import Extraction
from lightning_exposure.report.fields import Field
from lightning_exposure.secrets import CanarySet


def read_canaries(field: Field) -> CanarySet:
    """Canaries, from the form that `CanarySet.to_dict` gives them."""
    return CanarySet.from_dict(field.as_(dict), f"{field.file}: {field.path}")


def read_estimates(field: Field, canaries: CanarySet) -> dict[str, ExposureEstimate]:
    """Estimates by the id of their canary."""
    by_id = {canary.id: canary for canary in canaries}
    estimates = {}
    for key, item in field.entries().items():
        if key not in by_id:
            raise item.error(f"there is no canary with this id; expected one of {', '.join(by_id)}.")
        secret = item["secret"]
        if secret.as_(str) != by_id[key].text:
            raise secret.error(f"got {secret.value!r}; expected the text of the canary {key!r}.")
        estimates[key] = read_estimate(item)
    return estimates


def read_estimate(field: Field) -> ExposureEstimate:
    """One estimate."""
    rank = field["rank"]
    low, high = field["low"].number(finite=True), field["high"].number(finite=True)
    if low > high:
        raise field["low"].error(f"got {low}, above high, which is {high}; correct it, or save the run again.")
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
        # Records were once written without it.
        rests_on=field["rests_on"].as_(str) if "rests_on" in field.as_(dict) else "",
        **_read_what_came_later(field),
    )


def _read_what_came_later(field: Field) -> dict[str, Any]:
    """Parts of an estimate that records were once written without."""
    there = field.as_(dict)
    found: dict[str, Any] = {
        name: optional_number(field[name]) for name in ("prior_bits", "margin_bits") if name in there
    }
    if "margin_is_bound" in there:
        found["margin_is_bound"] = field["margin_is_bound"].as_(bool)
    return found


def optional_number(field: Field) -> float | None:
    """A number, or None where the file says null."""
    given = field.optional()
    return None if given is None else given.number()


def read_fit(field: Field) -> SkewNormal | None:
    """A fitted distribution, or None where the file says null."""
    given = field.optional()
    if given is None:
        return None
    numbers = {name: given[name].number(finite=True) for name in SkewNormal.__dataclass_fields__}
    if numbers["scale"] <= 0:
        raise given["scale"].expected("a positive number")
    return SkewNormal(**numbers)


def read_extraction(field: Field) -> Extraction:
    """What an attack found."""
    content = dict(field.as_(dict))
    for name in ("lower_bound", "seconds"):
        content[name] = field[name].number()
    for name in ("ended_by", "algorithm"):
        field[name].as_(str)
    field["optimal"].as_(bool)
    field["settings"].as_(dict)
    field["expansions"].count()
    content["candidates"] = [
        {"text": item["text"].as_(str), "bits": item["bits"].number(), "order": item["order"].count()}
        for item in field["candidates"].items()
    ]
    walks = field["walks_until_target"].optional()
    content["walks_until_target"] = None if walks is None else walks.count()
    return Extraction.from_dict(content, f"{field.file}: {field.path}")
