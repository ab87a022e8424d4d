"""How many training texts share a stretch with a release, and how many would by chance."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Sequence

from lightning_exposure._checks import count_of
from lightning_exposure.errors import DataError
from lightning_exposure.measuring import AuditWarning
from lightning_exposure.report.release import FoundShare, SpanCopies
from lightning_exposure.synthetic.text._spans import shared_spans

_ALIKE = 2.0
"""By so much texts of one source may differ in length, on average."""


def without(texts: Sequence[str], canaries: Iterable[str]) -> list[str]:
    """Texts in which no canary stands, whatever is around it: those are counted apart.

    Example:
        >>> without(["so it was", "note that pin 1234 is old"], ["pin 1234"])
        ['so it was']
    """
    planted = list(canaries)
    return [text for text in texts if not any(canary in text for canary in planted)]


def check_spans(texts: Sequence[str], train: Sequence[str], held_out: Sequence[str] | None, span: int) -> None:
    """Refuse texts that are too short to share anything, and warn of those that cannot be compared.

    Raises:
        DataError: One side has no stretch of so many characters.
    """
    sides = {"texts": (texts, 1), "train": (train, 2 if held_out is None else 1)}
    if held_out is not None:
        sides["held_out"] = held_out, 1
    for name, (given, needed) in sides.items():
        long_enough = len(_long_enough(given, span))
        if long_enough < needed:
            kind = f"of {span} characters{'' if name == 'texts' else ' without a canary'}"
            raise DataError(
                f"{name} has {count_of(long_enough, 'text')} {kind}; expected at least {needed}, because shorter ones "
                "share no stretch. Choose a smaller span, or give longer texts."
            )
    if held_out is not None:
        lengths = [_mean_length(_long_enough(given, span)) for given in (train, held_out)]
        if max(lengths) > _ALIKE * min(lengths):
            warnings.warn(
                f"The texts of train have {lengths[0]:,.0f} characters on average, and those of held_out "
                f"{lengths[1]:,.0f}: longer ones share more, whoever was trained on them, so that the counts of copied "
                "texts cannot be compared. Cut both alike.",
                AuditWarning,
                stacklevel=3,
            )


def count_spans(
    texts: Sequence[str],
    train: Sequence[str],
    held_out: Sequence[str] | None,
    span: int,
    confidence: float,
    seed: int,
) -> SpanCopies:
    """Which training texts share a stretch with a release, and how many texts would that the generator never saw.

    Without held-out texts: one half of the training texts is asked about, the other half takes the place of the
    release. Of the release as much is taken as that half has, in texts and in characters, so that a large one is not
    found guilty of its size; and of the half at least as much as of the release, in both: what stands once in every
    text depends on how many there are, and everything else on how long they are.
    """
    everything = shared_spans(train, texts, span)
    if held_out is not None:
        fresh = shared_spans(held_out, texts, span)
        pair = everything, fresh
    else:
        luck = random.Random(seed)
        shuffled = luck.sample(known := _long_enough(train, span), len(known))
        asked, others = shuffled[::2], shuffled[1::2]
        written = _long_enough(texts, span)
        release = at_most(luck.sample(written, len(written)), len(others), _characters(others), span)
        instead = at_least(others, len(release), _characters(release))
        pair = shared_spans(asked, release, span), shared_spans(asked, instead, span)
    shares = [FoundShare.counted(int(each.touched.sum()), int(each.long_enough.sum()), confidence) for each in pair]
    return SpanCopies(
        span=span,
        spans=everything.spans,
        found=everything.found,
        training=shares[0],
        chance=shares[1],
        compared_with="held-out texts" if held_out is not None else "other training texts",
    )


def at_most(texts: Sequence[str], count: int, characters: int, span: int) -> list[str]:
    """The first texts, so many with so many characters together at most; the last one is cut, if a stretch is left.

    Example:
        >>> at_most(["abcd", "efgh", "ijkl"], 3, 6, 2), at_most(["abcd", "efgh"], 1, 6, 2), at_most(["abcd"], 1, 3, 2)
        (['abcd', 'ef'], ['abcd'], ['abc'])
    """
    taken: list[str] = []
    room = characters
    for text in texts[:count]:
        if room < min(span, len(text)):
            break
        taken.append(text[:room])
        room -= len(text)
    return taken


def at_least(texts: Sequence[str], count: int, characters: int) -> list[str]:
    """The first texts, so many, and as many more as it takes to have so many characters; only of these one is cut.

    Example:
        >>> at_least(["abcd", "efgh", "ijkl"], 1, 6), at_least(["abcd", "efgh", "ijkl"], 2, 3)
        (['abcd', 'ef'], ['abcd', 'efgh'])
    """
    taken = list(texts[:count])
    room = characters - _characters(taken)
    for text in texts[count:]:
        if room <= 0:
            break
        taken.append(text[:room])
        room -= len(text)
    return taken


def _long_enough(texts: Sequence[str], span: int) -> list[str]:
    return [text for text in texts if len(text) >= span]


def _characters(texts: Sequence[str]) -> int:
    return sum(map(len, texts))


def _mean_length(texts: Sequence[str]) -> float:
    return _characters(texts) / len(texts)
