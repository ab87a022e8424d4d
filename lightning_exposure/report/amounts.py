"""Exposures, gains and ranks as people read them: what is a bound is written as one, and what is exact alone is not."""

from __future__ import annotations

from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.report.verdicts import is_certain, is_exact, rank_ends

METHODS_IN_WORDS = {
    "exact": "Every secret that costs no more was counted.",
    "counted": "Every secret that costs no more was counted, but rounding leaves ties undecided. The interval goes "
    "from all of them lost to all of them won, and is certain.",
    "importance": "A weighted sample of secrets, drawn as the model prefers them.",
    "sampling": "Secrets drawn uniformly: those that cost no more were counted, and the interval is that of a share.",
    "skewnormal": "A curve was fitted to secrets drawn uniformly, and is believed where there were none. The interval "
    "holds only if the curve does.",
}
"""What an interval rests on, where the estimate itself does not say."""


def rests_on(estimate: ExposureEstimate) -> str:
    """What the interval of an estimate rests on; "" if nobody knows."""
    return estimate.rests_on or METHODS_IN_WORDS.get(estimate.method, "")


def exposure_text(estimate: ExposureEstimate, digits: int = 2, at_least: str = "≥ ") -> str:
    """An exposure; where no more than a bound is known, the bound.

    >>> from dataclasses import replace
    >>> exact = ExposureEstimate("a", 29.9, 29.9, 29.9, "exact", 1, 3.0, 29.9, False, 0.95, 9)
    >>> exposure_text(exact), exposure_text(replace(exact, low=11.25, method="importance", is_bound=True), 1)
    ('29.90', '≥ 11.2')
    """
    return f"{at_least}{estimate.low:.{digits}f}" if estimate.is_bound else f"{estimate.bits:.{digits}f}"


def interval_text(estimate: ExposureEstimate, digits: int = 2) -> str:
    """An interval and how sure it is.

    >>> interval_text(ExposureEstimate("a", 7.2, 7, 7.5, "importance", 9.1, 3.0, 29.9, False, 0.95, 9))
    '7.00 to 7.50 (95%)'
    >>> interval_text(ExposureEstimate("a", 7.2, 7, 7.5, "counted", 9.1, 3.0, 29.9, False, 0.95, 9))
    '7.00 to 7.50 (certain)'
    """
    if is_exact(estimate):
        return "exact"
    sure = "certain" if is_certain(estimate) else f"{100 * estimate.confidence:.4g}%"
    return f"{estimate.low:.{digits}f} to {estimate.high:.{digits}f} ({sure})"


def end_text(estimate: ExposureEstimate) -> str:
    """What stands at the end of a line that is drawn at the low ends.

    >>> from dataclasses import replace
    >>> estimate = ExposureEstimate("a", 7.2, 7, 7.5, "importance", 9.1, 3.0, 29.9, False, 0.95, 9)
    >>> end_text(estimate), end_text(replace(estimate, is_bound=True))
    ('7.0 to 7.5', '≥ 7.0')
    """
    if estimate.is_bound:
        return f"≥ {estimate.low:.1f}"
    low, high = f"{estimate.low:.1f}", f"{estimate.high:.1f}"
    return low if low == high else f"{low} to {high}"


def gain_text(now: ExposureEstimate, before: ExposureEstimate) -> str:
    """What was added, between the ends that the two intervals leave.

    >>> exact = ExposureEstimate("a", 29.9, 29.9, 29.9, "exact", 1, 3.0, 29.9, False, 0.95, 9)
    >>> some = ExposureEstimate("a", 2.0, 1.5, 2.5, "importance", 9.1, 3.0, 29.9, False, 0.95, 9)
    >>> gain_text(exact, exact), gain_text(exact, some)
    ('+0.0', '+27.4 to +28.4')
    """
    low, high = now.low - before.high, now.high - before.low
    return f"{low:+.1f}" if low == high else f"{low:+.1f} to {high:+.1f}"


def rank_text(estimate: ExposureEstimate) -> str:
    """A rank: all digits if it is exact, the ends if ties are open, about three digits if it is estimated.

    >>> from dataclasses import replace
    >>> exact = ExposureEstimate("a", 9.6, 9.6, 9.6, "exact", 1234567, 3.0, 29.9, False, 0.95, 9)
    >>> rank_text(exact), rank_text(replace(exact, method="importance", rank=1234567.8))
    ('1,234,567', 'about 1.23e+06')
    """
    ends = rank_ends(estimate)
    if ends is None or not (estimate.is_bound or is_certain(estimate)):
        return f"about {estimate.rank:.3g}"
    if is_certain(estimate):
        return f"{ends.lowest:,}" if ends.lowest == ends.highest else f"{ends.lowest:,} to {ends.highest:,}"
    return f"at most {ends.highest:.3g}"


def margin_text(estimate: ExposureEstimate, digits: int = 1, at_least: str = "≥ ") -> str:
    """By how many bits a secret of rank 1 is ahead of the next one; "" of all others.

    Exposure ends where the first guess is right. The paper goes on from there by extrapolating; this is measured.

    >>> from dataclasses import replace
    >>> first = ExposureEstimate("a", 9.6, 9.6, 9.6, "exact", 1, 3.0, 9.6, False, 0.95, 9, margin_bits=12.34)
    >>> margin_text(first), margin_text(replace(first, margin_is_bound=True))
    ('12.3', '≥ 12.3')
    >>> margin_text(replace(first, rank=2, margin_bits=None))
    ''
    """
    if estimate.margin_bits is None:
        return ""
    return f"{at_least if estimate.margin_is_bound else ''}{estimate.margin_bits:.{digits}f}"
