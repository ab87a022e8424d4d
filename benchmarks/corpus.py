"""The text the benchmark model learns: Python's own manual, with canaries in it.

It comes with every Python, so the benchmarks download nothing.
"""

from __future__ import annotations

import random
import re

from lightning_exposure import CanarySet


def python_manual(characters: int) -> str:
    """The beginning of the help topics of the standard library."""
    from pydoc_data import topics  # a large module that only the training needs

    return "\n".join(topics.topics.values())[:characters]


def insert_at_word_boundaries(text: str, canaries: CanarySet, seed: int) -> str:
    """The text with each canary in it as often as it asks for, each time in front of a space drawn at random."""
    insertions = [canary.text for canary in canaries for _ in range(canary.copies)]
    spaces = [match.start() for match in re.finditer(" ", text)]
    places = random.Random(seed).sample(spaces, len(insertions))
    parts: list[str] = []
    copied = 0
    for place, insertion in sorted(zip(places, insertions, strict=True)):
        parts += [text[copied:place], insertion]
        copied = place
    return "".join([*parts, text[copied:]])
