"""Some of the texts of a format, or all: what a tree is tried on before anything is measured."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from lightning_exposure.tokenization.graphs.characters import Texts
from lightning_exposure.tokenization.huggingface.added_tokens import Match


def all_texts(texts: Texts) -> Iterator[str]:
    """Every secret, without what stands before it.

    Example:
        >>> from lightning_exposure import SecretFormat
        >>> list(all_texts(Texts.of(SecretFormat("pin {n}", n=["1", "12"]))))
        ['pin 1', 'pin 12']
    """
    cut = len(texts.before)
    beginning, start = _common(texts)
    stack = [(start, beginning)]
    while stack:
        state, text = stack.pop()
        if texts.accepting[state]:
            yield text[cut:]
        following = list(texts.edges[state].items())
        stack.extend((target, text + character) for character, target in reversed(following))


def random_texts(texts: Texts, count: int, seed: int) -> list[str]:
    """Secrets drawn uniformly, some perhaps more than once."""
    generator = random.Random(seed)
    beginning, start = _common(texts)
    ways = _ways_to_end(texts, start)
    return [(beginning + _from(texts, start, ways, generator))[len(texts.before) :] for _ in range(count)]


def texts_with(texts: Texts, matches: Sequence[Match], count: int, seed: int) -> list[str]:
    """Secrets that each have one of these added tokens in them, all of them in turn.

    Among secrets that are drawn at random there may be none: one in a million has " pin" in it.
    """
    generator = random.Random(seed)
    ways = _ways_to_end(texts, texts.start)
    before = _ways_before(texts, ways)
    usable = [match for match in matches if match.start in before and match.end in ways]
    generator.shuffle(usable)
    found = []
    for i in range(count if usable else 0):
        match = usable[i % len(usable)]
        beginning = _to(match.start, before, texts.start, generator)
        found.append((beginning + match.text + _from(texts, match.end, ways, generator))[len(texts.before) :])
    return found


def _common(texts: Texts) -> tuple[str, int]:
    """What all texts begin with, and the state behind it: a long prompt is not walked over again for each text."""
    characters, state = [], texts.start
    while len(texts.edges[state]) == 1 and not texts.accepting[state]:
        ((character, state),) = texts.edges[state].items()
        characters.append(character)
    return "".join(characters), state


def _ways_to_end(texts: Texts, start: int) -> dict[int, int]:
    """For each state behind the start, how many ways lead from it to the end of a text."""
    ways: dict[int, int] = {}
    stack = [start]
    while stack:
        state = stack[-1]
        missing = [target for target in texts.edges[state].values() if target not in ways]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        ways[state] = int(texts.accepting[state]) + sum(ways[target] for target in texts.edges[state].values())
    return ways


def _from(texts: Texts, state: int, ways: dict[int, int], generator: random.Random) -> str:
    """A random end of a text."""
    end = ""
    while True:
        chosen = generator.randrange(ways[state])
        if texts.accepting[state]:
            if chosen == 0:
                return end
            chosen -= 1
        for character, target in texts.edges[state].items():
            if chosen < ways[target]:
                end, state = end + character, target
                break
            chosen -= ways[target]


def _ways_before(texts: Texts, reachable: dict[int, int]) -> dict[int, list[tuple[str, int]]]:
    """For each state that can be reached, the last characters before it and the states that they come from."""
    before: dict[int, list[tuple[str, int]]] = {texts.start: []}
    for state in reachable:
        for character, target in texts.edges[state].items():
            before.setdefault(target, []).append((character, state))
    return before


def _to(state: int, before: dict[int, list[tuple[str, int]]], start: int, generator: random.Random) -> str:
    """A random beginning of a text, up to a state."""
    characters = []
    while state != start:
        character, state = generator.choice(before[state])
        characters.append(character)
    return "".join(reversed(characters))
