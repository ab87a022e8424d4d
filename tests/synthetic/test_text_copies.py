"""Copies of training texts in a release, beside those by chance: whatever lengths the texts have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulated_releases import canaries, memorizing, prose
from lightning_exposure.errors import DataError
from lightning_exposure.measuring import AuditWarning
from lightning_exposure.synthetic import audit_synthetic
from lightning_exposure.synthetic.text._copied import at_least, at_most, count_spans, without

DISCLAIMER = "this message is meant for nobody but the one that it was sent to"


def long_texts(luck: np.random.Generator, count: int, words: int, end: str = "") -> list[str]:
    """Texts of made-up words, which share nothing but how they end."""
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    return [" ".join("".join(luck.choice(letters, 6)) for _ in range(words)) + end for _ in range(count)]


def test_stretches_of_training_texts_beside_those_of_held_out_ones() -> None:
    luck = np.random.default_rng(0)
    train, fresh, others = prose(luck, 60), prose(luck, 50), prose(luck, 100)
    copied = count_spans([*others, *train[:30]], train, fresh, 24, 0.95, 0)
    assert copied.training.found >= 30
    assert copied.chance.of == 50
    assert copied.above_chance
    assert copied.compared_with == "held-out texts"
    honest = count_spans(others, train, fresh, 24, 0.95, 0)
    assert not honest.above_chance
    assert honest.found <= honest.spans


def test_without_held_out_texts_the_training_texts_say_what_chance_is() -> None:
    luck = np.random.default_rng(0)
    train, others = prose(luck, 120), prose(luck, 400)
    copied = count_spans(train, train, None, 16, 0.95, 0)
    # Half of the texts are asked about, in as much of the release as the other half has characters.
    assert copied.training.of == copied.chance.of == 60
    assert 15 < copied.training.found < 45
    assert copied.above_chance
    # A release of the same source that has copied nothing shares as much as other texts of its size do, however large.
    honest = count_spans(others, train, None, 16, 0.95, 0)
    assert honest.chance.found > 0
    assert not honest.above_chance
    assert honest.compared_with == "other training texts"


def test_canaries_are_no_training_texts_and_train_changes_no_score() -> None:
    drawn = canaries(40)
    texts = memorizing(drawn, 0)
    train = [*prose(np.random.default_rng(1), 30), *drawn.inserted.texts]
    with_train, alone = (
        audit_synthetic(texts, drawn, scorers=["ngram"], edits=0, train=each, span=9) for each in (train, None)
    )
    assert with_train.spans is not None
    assert with_train.spans.training.of == 15, "half of the texts that are no canaries"
    assert alone.spans is None
    assert with_train.combined == alone.combined


# --- lengths ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joined", [" ", "\n\n"])
def test_a_release_of_one_long_text_is_counted_like_any_other(joined: str) -> None:
    """Everything was copied, into one text."""
    train = long_texts(np.random.default_rng(0), 100, 20)
    for release in ([joined.join(train)], [joined.join(train[:50]), joined.join(train[50:])]):
        found = count_spans(release, train, None, 40, 0.95, 0)
        assert found.training.of == found.chance.of == 50
        assert found.training.found > 15
        assert found.chance.found == 0
        assert found.above_chance
    assert count_spans(
        [joined.join(train)], train, long_texts(np.random.default_rng(1), 50, 20), 40, 0.95, 0
    ).above_chance


@pytest.mark.parametrize(("texts", "words"), [(10, 15), (200, 15), (10, 300), (100, 100)])
@pytest.mark.parametrize("seed", range(3))
def test_what_every_text_ends_with_is_chance_whatever_the_lengths(texts: int, words: int, seed: int) -> None:
    """Independent texts of one source, shorter and longer ones, fewer and more, with the same line at the end."""
    luck = np.random.default_rng(seed)
    train = long_texts(luck, 60, 60, f" {DISCLAIMER}")
    release = long_texts(luck, texts, words, f" {DISCLAIMER}")
    found = count_spans(release, train, None, 40, 0.95, seed)
    assert not found.above_chance
    # The same with lines of which each stands in a few texts only.
    train, release = (
        [text[: -len(DISCLAIMER)] + f"line {luck.integers(20)} of them says this: {DISCLAIMER}"[:50] for text in given]
        for given in (train, release)
    )
    assert not count_spans(release, train, None, 40, 0.95, seed).above_chance


def test_a_release_of_short_pieces_that_were_copied_is_found() -> None:
    luck = np.random.default_rng(0)
    train = long_texts(luck, 200, 60)
    release = [train[place][start : start + 60] for place, start in luck.integers((200, 300), size=(1000, 2))]
    assert count_spans(release, train, None, 40, 0.95, 0).above_chance


def test_texts_that_are_too_short_take_no_one_s_place() -> None:
    """Half of the training texts have fewer characters than a stretch: they count for nothing on either side."""
    luck = np.random.default_rng(0)
    long_ones = long_texts(luck, 60, 20)
    train = [text for pair in zip(long_ones, ["short"] * 60, strict=True) for text in pair]
    release = [*["short"] * 500, *long_ones]
    found = count_spans(release, train, None, 40, 0.95, 0)
    assert found.training.of == 30
    assert found.training.found > 8
    assert found.above_chance


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("ab", max_size=9), max_size=9), st.integers(0, 9), st.integers(0, 60), st.integers(1, 5))
def test_so_much_of_some_texts_is_taken(texts: list[str], count: int, characters: int, span: int) -> None:
    most, least = at_most(texts, count, characters, span), at_least(texts, count, characters)

    def begin_alike(taken: Sequence[str]) -> bool:
        whole = list(zip(taken[:-1], texts, strict=False))
        return all(one == other for one, other in whole) and all(
            text.startswith(last) for last, text in zip(taken[-1:], texts[len(taken) - 1 :], strict=False)
        )

    assert begin_alike(most)
    assert begin_alike(least)
    assert len(most) <= count
    assert len("".join(most)) <= characters
    assert all(len(taken) >= min(span, len(text)) for taken, text in zip(most, texts, strict=False))
    assert len(least) >= min(count, len(texts))
    assert len("".join(least)) >= min(characters, len("".join(texts)))


# --- canaries and refusals ----------------------------------------------------------------------------------------


def test_a_text_around_a_canary_is_no_training_text() -> None:
    drawn = canaries(60)
    inside = [f"please note {text} thanks" for text in drawn.inserted.texts]
    others = long_texts(np.random.default_rng(0), 60, 10)
    found = audit_synthetic(
        [*inside, *long_texts(np.random.default_rng(1), 60, 10)], drawn, scorers=["ngram"], train=[*inside, *others]
    )
    assert found.spans is not None
    assert (found.spans.training.found, found.spans.training.of) == (0, 30), "half of the others"
    assert without([*inside, *others], drawn.texts) == others


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"texts": prose(np.random.default_rng(0), 50)}, "texts has 0 texts of 60 characters; expected at least 1"),
        ({"train": ["short"] * 9}, "train has 0 texts of 60 characters without a canary; expected at least 2"),
        ({"train": ["x" * 80, "short"]}, "train has 1 text of 60 characters without a canary; expected at least 2"),
        ({"held_out": ["short"]}, "held_out has 0 texts of 60 characters without a canary; expected at least 1"),
    ],
)
def test_what_is_too_short_for_a_stretch_is_refused(changes: dict[str, list[str]], message: str) -> None:
    """Nothing could be found, which must not look as if nothing were there."""
    luck = np.random.default_rng(0)

    def untouched(*_: object, **__: object) -> None:
        raise AssertionError("work has begun")

    texts = {"texts": long_texts(luck, 20, 20), "train": long_texts(luck, 20, 20), **changes}
    with pytest.raises(DataError, match=message):
        audit_synthetic(texts.pop("texts"), canaries(40), scorers={"mine": untouched}, span=60, **texts)


def test_held_out_texts_of_other_lengths_are_warned_of() -> None:
    luck = np.random.default_rng(0)
    drawn = canaries(40)
    texts, train = long_texts(luck, 20, 20), long_texts(luck, 20, 100)
    with pytest.warns(
        AuditWarning, match=r"The texts of train have 699 characters on average, and those of held_out 139"
    ):
        audit_synthetic(texts, drawn, scorers=["ngram"], train=train, held_out=long_texts(luck, 20, 20))
    audit_synthetic(texts, drawn, scorers=["ngram"], train=train, held_out=long_texts(luck, 20, 80))
