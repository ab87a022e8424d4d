r"""Where texts are cut into pre-tokens, before tokens are looked for.

A tokenizer first cuts a text into pre-tokens (at spaces, between digits and punctuation, in groups of three digits),
often with a regular expression that looks ahead (`\s+(?!\S)`). No token reaches over such a cut, and how one pre-token
is spelled does not depend on its neighbours. What holds for a tokenizer's model (see `canonical`) holds within one
pre-token only, so it must be known which two neighbouring characters are in one.

The regular expression is not taken apart. What is used instead: nearly all of them treat digits alike, and letters of
one case alike. Then the cuts of a text are those of its *shape*, the text with one and the same digit for every digit,
one lower-case and one upper-case letter for all others. A format has few shapes (`" ###-##-####"` has one), so each is
cut by the tokenizer itself, as a whole, with everything that it looks ahead to. Where it is not known which characters
a tokenizer treats alike, the shapes are the texts themselves, as long as they are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from lightning_exposure.tokenization.graphs.texts import Texts, fixed_part
from lightning_exposure.tokenization.protocol import HasCuts

MAYBE_CUT, NO_CUT, CUT = 0, 1, 2
"""Before a character: it depends on the rest of the text; never a cut; always one."""

PretokenCuts = list[dict[str, int]]
"""For each state of the texts and each character that may follow: whether the texts are cut before it."""

LARGEST_NUMBER_OF_SHAPES = 1024


def find_pretoken_cuts(
    texts: Texts,
    fixed: int,
    tokenizer: HasCuts,
    alike: Mapping[str, str],
    misleads: Callable[[str], bool] = lambda shape: False,
) -> PretokenCuts | None:
    """Where texts are cut, before each of their characters.

    Args:
        texts: All texts.
        fixed: How many characters all of them begin with.
        tokenizer: What cuts them.
        alike: Characters that the cuts do not tell apart, each with the one that stands for its kind.
        misleads: Whether a shape is cut in another way than the texts that have it.

    Returns:
        None if the texts have too many shapes, one misleads, or the tokenizer does not know its cuts.
    """
    beginning, states = fixed_part(texts, fixed)
    alike = _among(texts, alike)
    shapes = []
    for shape in _shapes(texts, beginning, states, alike):
        shapes.append(shape)
        if len(shapes) > LARGEST_NUMBER_OF_SHAPES or misleads(shape[0]):
            return None
    all_cuts = tokenizer.cuts([text for text, _ in shapes])
    if all_cuts is None:
        return None
    found: PretokenCuts = [{} for _ in range(len(texts))]
    for (text, places), cuts in zip(shapes, all_cuts, strict=True):
        for position, possible in enumerate(places[:-1]):
            here = CUT if position in cuts or position == 0 else NO_CUT
            for state in possible:
                for character in texts.edges(state):
                    if text[position] in (character, alike.get(character)):
                        seen = found[state].setdefault(character, here)
                        found[state][character] = here if seen == here else MAYBE_CUT
    return found


def _among(texts: Texts, alike: Mapping[str, str]) -> dict[str, str]:
    """The same, with characters that the texts have: the tokenizer may lack others."""
    present = {character for state in range(len(texts)) for character in texts.edges(state)} & alike.keys()
    chosen: dict[str, str] = {}
    for character in sorted(present):
        chosen.setdefault(alike[character], character)
    return {character: chosen[alike[character]] for character in present}


def _shapes(
    texts: Texts, beginning: str, fixed: Sequence[int], alike: Mapping[str, str]
) -> Iterator[tuple[str, list[frozenset[int]]]]:
    """Every shape, with the states that a text of that shape may be in at each of its positions."""
    stack = [(beginning, [frozenset([state]) for state in fixed])]
    while stack:
        shape, places = stack.pop()
        following: dict[str, set[int]] = {}
        for state in places[-1]:
            for character, target in texts.edges(state).items():
                following.setdefault(alike.get(character, character), set()).add(target)
        if any(texts.accepting(state) for state in places[-1]):
            yield shape, places
        stack.extend((shape + kind, [*places, frozenset(targets)]) for kind, targets in following.items())
