"""The slow and obvious reference: every sequence of tokens that may become the text, one full pass for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor, nn

from lightning_exposure import SecretFormat

Chances = Callable[[Tensor], Tensor]


def softmax(logits: Tensor) -> Tensor:
    return torch.softmax(logits, dim=-1)


def probability(
    model: nn.Module,
    prompt: Sequence[int],
    decode: Callable[[Sequence[int]], str],
    texts: Iterable[str],
    chances: Chances = softmax,
) -> float:
    """How likely what is written begins with one of the texts: the first token that makes it so ends the search."""
    wanted = tuple(texts)

    def search(tokens: list[int]) -> float:
        with torch.no_grad():
            output = model(torch.tensor([tokens]))
        logits = (output[0] if isinstance(output, tuple) else output)[0, -1].double()
        found = 0.0
        for token, chance in enumerate(chances(logits).tolist()):
            if chance == 0.0:
                continue
            text = decode([*tokens, token])
            if text.startswith(wanted):
                found += chance
            elif any(other.startswith(text) for other in wanted) and text != decode(tokens):
                found += chance * search([*tokens, token])
        return found

    return search(list(prompt))


def within_substitutions(format: SecretFormat, secret: str, blanks: dict[int, str], edits: int) -> set[str]:
    """The texts that differ in at most so many of the blanks, given by position with the characters they allow."""
    found = {secret}
    for places in combinations(blanks, edits):
        for characters in product(*(blanks[place] for place in places)):
            text = list(secret)
            for place, character in zip(places, characters, strict=True):
                text[place] = character
            found.add("".join(text))
    return found


def within_levenshtein(prompt: str, rest: str, alphabet: str, edits: int) -> set[str]:
    """The texts that become the rest by at most so many edits, behind the prompt."""
    found = {rest}
    for _ in range(edits):
        for text in list(found):
            for at in range(len(text) + 1):
                found |= {text[:at] + c + text[at:] for c in alphabet}
                if at < len(text):
                    found |= {text[:at] + c + text[at + 1 :] for c in alphabet} | {text[:at] + text[at + 1 :]}
    return {prompt + text for text in found}


def as_transformers_does(temperature: float, top_k: int | None, top_p: float | None) -> Chances:
    """What the warpers of `generate` make of logits, in its order."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    warpers: list[Any] = [TemperatureLogitsWarper(temperature)]
    if top_k is not None:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p is not None:
        warpers.append(TopPLogitsWarper(top_p))

    def chances(logits: Tensor) -> Tensor:
        scores = logits[None]
        for warper in warpers:
            scores = warper(torch.zeros((1, 1), dtype=torch.long), scores)
        return torch.softmax(scores, dim=-1)[0]

    return chances
