"""Canaries that are made for audits: not drawn like any other secret, but so that a model shows having seen them.

The bound of an audit holds for every choice of canaries, as long as a fair coin of its own says of each whether it is
in. So they can be those that a model is most likely to notice. Exposure is another matter: it compares a canary with
all secrets that could have been drawn as well. These canaries carry `purpose="audit"`, and exposure refuses them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from lightning_exposure._checks import instance, number, refusal, whole_number
from lightning_exposure.errors import ArgumentError, TokenizerError
from lightning_exposure.secrets import CanarySet, SecretFormat
from lightning_exposure.secrets.formats.drawing import Seed
from lightning_exposure.tokenization import Tokenizer
from lightning_exposure.tree import SecretTree
from lightning_exposure.walks import score

_TRIED = 32
"""How many texts of a new format are spelt, to see that its tokens do not melt into others."""


def draw_audit_canaries(
    tree: SecretTree, count: int, *, band: tuple[float, float] = (0.9, 1.0), seed: Seed = 0, repetitions: int = 1
) -> CanarySet:
    """Draw canaries whose cost for a reference model lies in a band, and toss a fair coin for each.

    So many secrets are drawn uniformly that the band has `count` of them, and those are taken.

    Args:
        tree: The secrets, and a model that has not been trained on the canaries: what it costs there is what counts.
        count: How many canaries.
        band: Which of the costs, from 0, the cheapest, to 1, the most surprising; (0.9, 1.0) is the most surprising
            tenth.
        seed: An integer, a `random.Random` or a `numpy.random.Generator`.
        repetitions: How often each is inserted if its coin says so; the bound is for one record, so 1 proves most.

    Raises:
        ArgumentError: The band is none, the format has too few secrets, or nothing would be inserted.

    Example:
        >>> import torch
        >>> from lightning_exposure import CharTokenizer
        >>> model = torch.nn.Embedding(14, 14, _weight=torch.arange(14.0).repeat(14, 1))  # high digits are cheap
        >>> tree = SecretTree(model, SecretFormat("pin ####"), CharTokenizer.from_text("pin 0123456789"))
        >>> canaries = draw_audit_canaries(tree, 3, band=(0.0, 0.01))
        >>> sorted(canaries.texts), {canary.purpose for canary in canaries}
        (['pin 9599', 'pin 9698', 'pin 9995'], {'audit'})
    """
    count = whole_number("count", count, at_least=1)
    repetitions = whole_number("repetitions", repetitions, at_least=1)
    low, high = _checked_band(band)
    drawn = math.ceil(count / (high - low) - 1e-9)
    if drawn > tree.size:
        raise refusal(
            "count", count, f"at most {math.floor(tree.size * (high - low) + 1e-9)} in this band",
            f"The format has {tree.size:,} secrets: take a wider band or a larger format.",
        )  # fmt: skip
    # The coins are tossed for all, before anything is known of their costs: those of the chosen are as fair.
    pool = CanarySet.draw(
        tree.format, repetitions=[repetitions] * drawn, seed=seed, holdout=0.5, purpose="audit"
    )  # fmt: skip
    by_cost = np.argsort(score(tree, pool.texts).costs, kind="stable")
    first = min(round(low * drawn), drawn - count)
    return CanarySet(pool[int(place)] for place in np.sort(by_cost[first : first + count]))


def unused_token_format(
    tokenizer: Tokenizer,
    texts: Iterable[str],
    *,
    length: int = 9,
    prompt: str = "",
    between: str = "",
    name: str = "unused",
) -> SecretFormat:
    """A format whose blanks are tokens of the vocabulary that the training data never use.

    What a model knows of such tokens it has from the canaries alone; and if there are many of them, as of one canary
    alone. Then they prove far more than others; ten of them prove no more. Draw them with
    `CanarySet.draw(format, repetitions=[1] * 200, holdout=0.5, purpose="audit")`.

    Args:
        tokenizer: Its vocabulary must have tokens to spare, as most large ones have; for a `CharTokenizer` give further
            characters to `from_text`.
        texts: The training data.
        length: How many blanks.
        prompt: What stands before the first blank, literally.
        between: What stands between two blanks: " " for a tokenizer of words.
        name: The name of the format.

    Raises:
        ArgumentError: The training data use all tokens, or all but one.
        TokenizerError: Behind one another, unused tokens are spelt with others.

    Example:
        >>> from lightning_exposure import CharTokenizer
        >>> tokenizer = CharTokenizer.from_text("some text", "αβγδ")
        >>> format = unused_token_format(tokenizer, ["some text"], length=4)
        >>> format.size, format.render(27)
        (256, 'αβγδ')
    """
    length = whole_number("length", length, at_least=1)
    instance("prompt", prompt, str, "a string")
    used = {token for text in [*texts, prompt, between] for token in tokenizer.encode(text)}
    symbols = _prefix_free(_symbols(tokenizer, used))
    if len(symbols) < 2:
        raise ArgumentError(
            f"tokenizer has {tokenizer.vocab_size} tokens, of which {len(symbols)} can be written and are not in the "
            "texts; expected at least 2. Use a larger vocabulary: CharTokenizer.from_text(text, more_characters)."
        )
    literal = {character: f"\\{character}" for character in "\\#?{"}
    start, joint = ("".join(literal.get(character, character) for character in each) for each in (prompt, between))
    made = SecretFormat(start + joint.join(["{token}"] * length), name=name, token=symbols)
    for text in made.sample(min(_TRIED, made.size), 0):
        if not _all_new(tokenizer, text, prompt, between, used):
            raise TokenizerError(
                f"tokenizer spells {text!r} with tokens that the texts use; expected unused ones. Put something "
                "between them: between=' '."
            )
    return made


def _checked_band(band: tuple[float, float]) -> tuple[float, float]:
    remedy = "For example (0.9, 1.0), the most surprising tenth."
    if not isinstance(band, tuple | list) or len(band) != 2:
        raise refusal("band", band, "two numbers from 0 to 1, the lower first", remedy)
    low, high = (number(f"band[{place}]", end, at_least=0, at_most=1) for place, end in enumerate(band))
    if low >= high:
        raise refusal("band", band, "two numbers from 0 to 1, the lower first", remedy)
    return low, high


def _symbols(tokenizer: Tokenizer, used: set[int]) -> list[str]:
    """What stands for one unused token, and for nothing else."""
    found = []
    for token in range(tokenizer.vocab_size):
        if token in used:
            continue
        symbol = tokenizer.decode([token])
        try:
            if symbol and tokenizer.encode(symbol) == [token]:
                found.append(symbol)
        except TokenizerError:
            continue  # such as "<unk>", which stands for no text
    return found


def _prefix_free(symbols: Iterable[str]) -> list[str]:
    """Without those that begin with another: of the others, no two texts of equal many are the same.

    >>> _prefix_free(["ab", "a", "b", "ba", "c"])
    ['a', 'b', 'c']
    """
    kept: set[str] = set()
    for symbol in sorted(symbols, key=lambda symbol: (len(symbol), symbol)):
        if not any(symbol[:end] in kept for end in range(1, len(symbol))):
            kept.add(symbol)
    return sorted(kept)


def _all_new(tokenizer: Tokenizer, text: str, prompt: str, between: str, used: set[int]) -> bool:
    """Whether the blanks of a text are spelt with unused tokens alone."""
    fixed = {*tokenizer.encode(prompt), *tokenizer.encode(between)}
    return all(token in fixed or token not in used for token in tokenizer.encode(text))
