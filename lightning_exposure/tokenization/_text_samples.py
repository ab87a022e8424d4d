"""Some of the texts of a format, or all: what a tree is tried on before anything is measured."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence

from lightning_exposure.secrets.formats.graph import all_paths, draw_path, only_way, paths_ahead
from lightning_exposure.tokenization.graphs.texts import Stretch, Texts


def all_texts(texts: Texts) -> Iterator[str]:
    """Every secret, without what stands before it.

    Example:
        >>> from lightning_exposure import SecretFormat
        >>> list(all_texts(Texts.of(SecretFormat("pin {n}", n=["1", "12"]))))
        ['pin 1', 'pin 12']
    """
    beginning, start = _common(texts)
    return (beginning + "".join(path) for path in all_paths(texts, start))


def random_texts(texts: Texts, count: int, seed: int) -> list[str]:
    """Secrets drawn uniformly, some perhaps more than once."""
    generator = random.Random(seed)
    beginning, start = _common(texts)
    ahead = paths_ahead(texts, start)
    return [beginning + "".join(draw_path(texts, ahead, generator, start)) for _ in range(count)]


def texts_with(texts: Texts, stretches: Sequence[Stretch], count: int, seed: int) -> list[str]:
    """Secrets that each have one of these stretches in them, all of them in turn.

    Among secrets that are drawn at random there may be none: one in a million has " pin" in it.
    """
    generator = random.Random(seed)
    ahead = paths_ahead(texts)
    before = _ways_before(texts, ahead)
    usable = [stretch for stretch in stretches if stretch.start in before and stretch.end in ahead]
    generator.shuffle(usable)
    found = []
    for i in range(count if usable else 0):
        start, text, end = usable[i % len(usable)]
        beginning = _to(start, before, texts.start, generator)
        found.append((beginning + text + "".join(draw_path(texts, ahead, generator, end)))[len(texts.before) :])
    return found


def _common(texts: Texts) -> tuple[str, int]:
    """What all secrets begin with, and the state behind it: a long prompt is not walked over again for each of them."""
    way = only_way(texts)
    if not way:
        return "", texts.start
    return "".join(character for character, _ in way)[len(texts.before) :], way[-1][1]


def _ways_before(texts: Texts, reachable: Collection[int]) -> dict[int, list[tuple[str, int]]]:
    """For each state that can be reached, the last characters before it and the states that they come from."""
    before: dict[int, list[tuple[str, int]]] = {texts.start: []}
    for state in reachable:
        for character, target in texts.edges(state).items():
            before.setdefault(target, []).append((character, state))
    return before


def _to(state: int, before: dict[int, list[tuple[str, int]]], start: int, generator: random.Random) -> str:
    """A random beginning of a text, up to a state."""
    characters = []
    while state != start:
        character, state = generator.choice(before[state])
        characters.append(character)
    return "".join(reversed(characters))
