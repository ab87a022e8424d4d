"""Verdicts: how many guesses find a secret, and how sure that is.

Whoever has the model guesses secrets in the order of its preference, and comes to a secret with as many guesses as its
rank. So a verdict follows from the rank, and from what an attack came up with. Every statement is made with the end of
the interval that can be defended: a secret *is* found within N guesses only if its rank is at most N at the worst, it
is *not* only if its rank is above N at the best, and everything else is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.extraction import Extraction

LEVELS = (1, 1_000, 1_000_000)
"""How many guesses a verdict speaks of."""

_SHARE = 10
"""A format has to be so many times larger than the guesses: who guesses blindly comes to any secret in the end."""

_ROUNDING = 1e-9
"""RankSpan come back from logarithms: how much they may have lost on the way, relatively."""

LEAKS, HOLDS, UNKNOWN = "leaks", "holds", "unknown"
LIKELY = "likely"
"""The colour of what holds with some confidence, and was not proven."""

NO_EVIDENCE = "neither measured nor attacked"


class Answer(NamedTuple):
    """Whether a secret is found within some number of guesses.

    Attributes:
        found: True, False, or None if that is not known.
        confidence: Of the answer; 1.0 if it is proven.
    """

    found: bool | None
    confidence: float = 1.0

    @property
    def how(self) -> str:
        """How sure it is, in words."""
        return _how(self.confidence)


class RankSpan(NamedTuple):
    """A rank is between these, both included."""

    lowest: int
    highest: int

    def within(self, guesses: int) -> bool | None:
        """Whether the rank is at most so large; None if this leaves it open."""
        return True if self.highest <= guesses else False if self.lowest > guesses else None


@dataclass(frozen=True)
class Verdict:
    """How many guesses find one secret.

    Attributes:
        size: How many secrets its format has.
        proven: The number of guesses that find it lies between these.
        estimated: The same with `confidence`, from a sample; None: there is none.
        confidence: The confidence level of `estimated`.
        order: Its place among the candidates of an attack; None: it was not among them.
        known: Whether this attack was told how the secret begins.
        why: Why nothing more is known.

    Example:
        >>> print(Verdict(10**9, RankSpan(18411, 18411)))
        within 1,000,000 guesses (rank 18,411), proven
        >>> print(Verdict(10**9, RankSpan(1, 10**9), RankSpan(2 * 10**6, 3 * 10**6), 0.95))
        not within 1,000,000 guesses, with 95% confidence
    """

    size: int
    proven: RankSpan
    estimated: RankSpan | None = None
    confidence: float = 1.0
    order: int | None = None
    known: bool = False
    why: str = ""

    def within(self, guesses: int) -> Answer:
        """Whether so many guesses find it: what is proven first, then what the sample says."""
        proven = self.proven.within(guesses)
        if proven is not None or self.estimated is None:
            return Answer(proven)
        found = self.estimated.within(guesses)
        return Answer(found) if found is None else Answer(found, self.confidence)

    @property
    def levels(self) -> tuple[int, ...]:
        """The numbers of guesses it speaks of: `LEVELS`, but never more than a tenth of all secrets."""
        reach = max(1, min(LEVELS[-1], self.size // _SHARE))
        return (*(level for level in LEVELS if level < reach), reach)

    @property
    def found_within(self) -> int | None:
        """The fewest guesses, of `levels`, that find it; None: none of them are known to."""
        return next((level for level in self.levels if self.within(level).found), None)

    @property
    def mood(self) -> str:
        """Whether the most guesses of `levels` find it ("leaks") or do not ("holds"), or that is open ("unknown")."""
        if self.size < 2:
            return UNKNOWN  # there is nothing to guess
        return {True: LEAKS, False: HOLDS, None: UNKNOWN}[self.within(self.levels[-1]).found]

    @property
    def shade(self) -> str:
        """Its mood as a page may colour it: green ("holds") is for what was proven.

        >>> Verdict(10**9, RankSpan(10**7, 10**7)).shade
        'holds'
        >>> Verdict(10**9, RankSpan(1, 10**9), RankSpan(10**7, 10**8), 0.95).shade
        'likely'
        """
        likely = self.mood == HOLDS and self.within(self.levels[-1]).confidence < 1.0
        return LIKELY if likely else self.mood

    @property
    def short(self) -> str:
        """A few words, for a column of guesses.

        >>> Verdict(10**9, RankSpan(1, 1)).short, Verdict(10**9, RankSpan(5, 10**9)).short
        ('1st (proven)', 'unknown')
        """
        level = self.found_within or self.levels[-1]
        answer = self.within(level)
        if answer.found is None:
            return UNKNOWN
        how = "proven" if answer.confidence == 1.0 else f"{100 * answer.confidence:.4g}%"
        words = "1st" if level == 1 else f"within {level:,}"
        return f"{words} ({how})" if answer.found else f"not {words} ({how})"

    def __str__(self) -> str:
        """A sentence without a verb."""
        condition = ", if it is known how it begins" if self.known and self.order else ""
        level = self.found_within
        if level is not None:
            how = self.within(level).how
            place = "" if level == 1 else self._place()
            return f"{'1st guess' if level == 1 else f'within {level:,} guesses'}{place}, {how}{condition}"
        most = self.levels[-1]
        answer = self.within(most)
        if answer.found is False:
            return f"{_not_within(most)}{self._place()}, {answer.how}"
        # Short of a level, but better than nothing.
        for ranks, how in ((self.proven, _how(1.0)), (self.estimated, _how(self.confidence))):
            if ranks is not None and ranks.lowest > 1:
                guesses = ranks.lowest - 1 if ranks is self.proven else rounded(ranks.lowest - 1, math.floor)
                return f"{_not_within(guesses)}, {how}; beyond that unknown"
        return f"{UNKNOWN}: {self.why}" if self.why else UNKNOWN

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the words, the numbers that are proven, and those that a sample gave."""
        return {
            "verdict": str(self),
            "mood": self.mood,
            "found_within": self.found_within,
            "proven_guesses": list(self.proven),
            "estimated_guesses": None if self.estimated is None else list(self.estimated),
            "confidence": None if self.estimated is None else self.confidence,
        }

    def _place(self) -> str:
        """Where exactly, as far as that is known."""
        if self.proven.lowest == self.proven.highest:
            return f" (rank {self.proven.lowest:,})"
        if self.order is not None and self.order == self.proven.highest:
            return f" (guess {self.order:,} of the attack)"
        return ""


def verdict_of(
    secret: str, size: int, estimate: ExposureEstimate | None = None, attack: Extraction | None = None
) -> Verdict:
    """How many guesses find a secret, from what was measured and from what an attack found.

    A candidate of an attack is found with its place in the list, proven optimal or not: the attack did come up with it.
    That a secret is missing from a list of k says that k guesses do not find it only if the list is proven optimal.

    Args:
        secret: The text.
        size: How many secrets its format has.
        estimate: Its exposure; None: it was not measured.
        attack: On its format, of the same model; None: there was none.

    Example:
        >>> exact = ExposureEstimate("pin 1234", 3.3, 3.3, 3.3, "exact", 1000, 9.0, 13.3, False, 0.95, 9)
        >>> print(verdict_of("pin 1234", 10_000, exact), "|", verdict_of("pin 1234", 10_000))
        within 1,000 guesses (rank 1,000), proven | unknown: neither measured nor attacked
    """
    why = _why(estimate, attack)
    if attack is None:
        return Verdict(**_from_evidence(size, estimate, None, 0), why=why)
    known = attack.settings.get("known")
    order = min((candidate.order for candidate in attack.candidates if candidate.text == secret), default=None)
    # Where the attack was given a beginning, its list says nothing of secrets that begin otherwise.
    listed = len(attack.candidates) if attack.optimal and secret.startswith(known or "") else 0
    verdict = Verdict(**_from_evidence(size, estimate, order, listed), known=bool(known), why=why)
    if not known or order is None:
        return verdict
    unaided = replace(Verdict(**_from_evidence(size, estimate, None, 0)), order=order)
    return unaided if (unaided.found_within or math.inf) <= (verdict.found_within or math.inf) else verdict


def verdict_of_first_candidate(estimate: ExposureEstimate, *, extracted: bool, proven: bool) -> Verdict:
    """The same where of an attack only this was kept: was its best candidate the secret, and was that proven?"""
    size = max(1, round(2.0**estimate.size_bits))
    found = _from_evidence(size, estimate, 1 if extracted else None, 1 if proven else 0)
    why = "" if extracted or proven else "not the attack's first candidate, which was not proven to be the best"
    return Verdict(**found, why=why)


def _from_evidence(size: int, estimate: ExposureEstimate | None, order: int | None, listed: int) -> dict[str, Any]:
    """Join a measurement with an attack that has the secret at a place of its list, and proved `listed` of them."""
    proven, estimated = RankSpan(1, size), None
    if estimate is not None:
        ranks = rank_ends(estimate)
        if ranks is not None and is_certain(estimate):
            proven = ranks
        elif ranks is not None:
            estimated = ranks
    if order is not None:
        proven = _found_at(proven, order, optimal=listed > 0)
    elif listed:
        proven = _missing_from(proven, listed)
    if estimated is not None:
        lowest, highest = max(estimated.lowest, proven.lowest), min(estimated.highest, proven.highest)
        estimated = RankSpan(lowest, highest) if lowest <= highest else None  # what is refuted says nothing
    confidence = 1.0 if estimated is None or estimate is None else estimate.confidence
    return {"size": size, "proven": proven, "estimated": estimated, "confidence": confidence, "order": order}


def rank_ends(estimate: ExposureEstimate) -> RankSpan | None:
    """The ranks that an estimate leaves open; None if it is an extrapolation, which no interval can defend.

    >>> size = math.log2(10_000)
    >>> rank_ends(ExposureEstimate("pin 1234", 3.0, 2.0, 4.0, "importance", 1250.0, 9.0, size, False, 0.95, 9))
    RankSpan(lowest=625, highest=2500)
    """
    if estimate.method == "skewnormal" or (estimate.prior_bits is not None and not is_exact(estimate)):
        return None  # nor does an interval against a prior say anything about ranks
    if is_exact(estimate):
        rank = estimate.rank if isinstance(estimate.rank, int) else round(estimate.rank)
        return RankSpan(rank, rank)
    # A rank is a whole number; rounding may only widen the interval.
    lowest = math.ceil(2.0 ** (estimate.size_bits - estimate.high) * (1.0 - _ROUNDING))
    highest = math.floor(2.0 ** (estimate.size_bits - estimate.low) * (1.0 + _ROUNDING))
    return RankSpan(max(1, lowest), max(1, lowest, highest))


def is_exact(estimate: ExposureEstimate) -> bool:
    """Whether it is one number, and certain."""
    return estimate.method == "exact" and estimate.low == estimate.high


def is_certain(estimate: ExposureEstimate) -> bool:
    """Whether its interval is certain: everything was counted, and only ties may be undecided."""
    return estimate.method in ("exact", "counted")


def _found_at(ranks: RankSpan, order: int, *, optimal: bool) -> RankSpan:
    """An attack came up with it at this place."""
    if order < ranks.lowest:
        return RankSpan(order, order)  # ties that the attack was lucky with: it did guess it
    if order <= ranks.highest:
        return RankSpan(order if optimal else ranks.lowest, order)
    return RankSpan(ranks.lowest, order) if optimal else ranks  # two proofs that rounding sets apart: between them


def _missing_from(ranks: RankSpan, listed: int) -> RankSpan:
    """It is not among the first so many, and that is proven."""
    beyond = listed + 1
    if beyond > ranks.highest:
        return RankSpan(ranks.lowest, beyond)  # as above
    return RankSpan(max(ranks.lowest, beyond), ranks.highest)


def _why(estimate: ExposureEstimate | None, attack: Extraction | None) -> str:
    reasons = []
    if estimate is not None and estimate.method == "skewnormal":
        reasons.append("a skew-normal extrapolation proves nothing")
    elif estimate is not None and estimate.prior_bits is not None and rank_ends(estimate) is None:
        reasons.append("an interval against a prior bounds no rank")
    if attack is not None and not attack.optimal:
        number = len(attack.candidates)
        which = f"not among the {number:,} candidates" if number > 1 else "not the candidate"
        what = f"{which} of an attack that" if number else "an attack found nothing before it"
        reasons.append(f"{what} was ended by {attack.ended_by}")
    return "; ".join(reasons) or (NO_EVIDENCE if estimate is None and attack is None else "")


def rounded(number: int, direction: Callable[[float], int]) -> int:
    """A number with two digits and zeros, in the direction that is safe.

    >>> rounded(153_893_052, math.floor), rounded(353_553_390, math.ceil), rounded(17, math.ceil)
    (150000000, 360000000, 17)
    """
    unit: int = 10 ** max(0, len(str(number)) - 2)
    return direction(number / unit) * unit


def _how(confidence: float) -> str:
    return "proven" if confidence == 1.0 else f"with {100 * confidence:.4g}% confidence"


def _not_within(guesses: int) -> str:
    return "not the 1st guess" if guesses == 1 else f"not within {guesses:,} guesses"


# ---- of many secrets --------------------------------------------------------------------------------------------


def joint_mood(verdicts: Iterable[Verdict]) -> str:
    """Of a page about these secrets: it "leaks" if one does, and "holds" only if all of them do."""
    moods = {verdict.mood for verdict in verdicts}
    return LEAKS if LEAKS in moods else HOLDS if moods == {HOLDS} else UNKNOWN


def joint_shade(verdicts: Iterable[Verdict]) -> str:
    """The colour of a page about these secrets: green ("holds") only if that was proven of all of them."""
    shades = {verdict.shade for verdict in verdicts}
    if LEAKS in shades or UNKNOWN in shades or not shades:
        return LEAKS if LEAKS in shades else UNKNOWN
    return LIKELY if LIKELY in shades else HOLDS


def found_in_words(verdicts: Iterable[Verdict]) -> str:
    """How many guesses find those that can be found, fewest first.

    >>> found_in_words(Verdict(10**9, RankSpan(rank, rank)) for rank in (1, 18411, 2))
    '1 with the first guess, 1 more within 1,000 guesses, 1 more within 1,000,000 guesses'
    """
    levels = [verdict.found_within for verdict in verdicts]
    counts = {level: levels.count(level) for level in sorted(level for level in levels if level is not None)}
    parts = [("with the first guess" if level == 1 else f"within {level:,} guesses") for level in counts]
    if len(parts) < 2:
        return "".join(parts)
    numbers = [f"{count:,}{' more' if place else ''}" for place, count in enumerate(counts.values())]
    return ", ".join(f"{number} {part}" for number, part in zip(numbers, parts, strict=True))


def ruled_out_in_words(verdicts: Iterable[Verdict]) -> str:
    """What is true of all secrets that hold: so many guesses do not find them, and how sure that is.

    >>> ruled_out_in_words([Verdict(10**9, RankSpan(10**7, 10**7)), Verdict(10_000, RankSpan(5000, 5000))])
    'within 1,000 guesses (proven)'
    """
    given = list(verdicts)
    level = min(verdict.levels[-1] for verdict in given)
    answer = min((verdict.within(level) for verdict in given), key=lambda answer: answer.confidence)
    each = "each " if len(given) > 1 and answer.confidence < 1.0 else ""
    guesses = "with the first guess" if level == 1 else f"within {level:,} guesses"
    return f"{guesses} ({each}{answer.how})"
