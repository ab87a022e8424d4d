"""`leak_probability`: how likely a model is to say a secret, between two certain bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from lightning_exposure._checks import check_texts, instance, whole_number
from lightning_exposure.errors import ArgumentError
from lightning_exposure.leakage._marks import marked
from lightning_exposure.leakage._neighbourhood import by_levenshtein, by_substitution
from lightning_exposure.leakage._share import shares
from lightning_exposure.leakage._target import LeakTarget, WrittenTokens
from lightning_exposure.leakage._writing import GivenPrompt, as_bytes, pieces_of, read_prompt
from lightning_exposure.leakage.decoder import Decoder
from lightning_exposure.leakage.estimate import LeakEstimate, NearMiss
from lightning_exposure.secrets.formats.graph import steps_behind, walk
from lightning_exposure.tokenization.graphs.texts import Texts
from lightning_exposure.tokenization.protocol import surroundings_of
from lightning_exposure.tree.secret_tree import SecretTree, check_tree
from lightning_exposure.walks import DEFAULT_MEMORY, Mass, Progress, Rounding, heaviest_first, measure_rounding

_SUMMING = 1e-12
"""Adding up in float64 is wrong by no more than this part, whatever is added."""

_LN2 = math.log(2.0)

_AS_IT_IS = Decoder()


def leak_probability(
    tree: SecretTree,
    secrets: Sequence[str],
    decoder: Decoder = _AS_IT_IS,
    edits: int = 0,
    *,
    prompt: str | None = None,
    levenshtein: bool = False,
    tolerance: float = 0.01,
    budget: int = 100_000,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> list[LeakEstimate]:
    """How likely the model is to write a text that begins with a secret, given the prompt; in the order given.

    All the ways to spell a secret count, not only the tokenizer's own, and the last token may go on behind it. The
    prompt is encoded alone, as an attacker would. A special token never is a part of a secret.

    Args:
        tree: The model, the format and the tokenizer.
        secrets: Complete texts of the format.
        decoder: How text is sampled.
        edits: Texts within this many substitutions count too, each by a character that its blank allows.
        prompt: What the model is given; None: what comes before the first blank, or what the tree was told to start
            with. Or a beginning of that: to a tokenizer of subwords a space at the end is a token that training may
            never have seen there, and a model says more without it.
        levenshtein: Count edits as Levenshtein does: leaving out or putting in a character is an edit, too, and any
            character of the format behind the prompt may stand anywhere behind the prompt.
        tolerance: Stop when what is still open weighs no more than this part of what was found.
        budget: The largest number of expansions for each secret. The interval is wider then, and not less certain.
        memory: The limit for model states, in bytes.
        progress: Called after each secret with the expansions so far, the open nodes (none by then), and the bits of
            the likeliest secret so far: -log2 of its `low`.

    Raises:
        SecretError: A text is not a secret of the format.
        ArgumentError: Any other argument is out of range; it is named.
        ModelError: The model returned NaN, or logits of a wrong shape.

    Example:
        >>> import torch
        >>> from lightning_exposure import SecretFormat
        >>> from lightning_exposure.tokenization import CharTokenizer
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Embedding(14, 8), torch.nn.Linear(8, 14))
        >>> tree = SecretTree(model, SecretFormat("pin ####"), CharTokenizer.from_text("pin 0123456789"))
        >>> leak, = leak_probability(tree, ["pin 1234"], edits=1)
        >>> 0 < leak.verbatim[0] < leak.low <= leak.high < 1, len(leak.near_misses)
        (True, 36)
    """
    check_tree(tree)
    check_texts("secrets", secrets)
    instance("decoder", decoder, Decoder, "a Decoder", "Make one, such as Decoder(temperature=0.7, top_k=50).")
    if not secrets:
        return []
    distinct = list(dict.fromkeys(secrets))
    rounding = measure_rounding(tree, tree.paths(distinct), memory=memory)
    attack = _Attack.on(tree, decoder, rounding, whole_number("edits", edits, at_least=0), levenshtein, prompt)
    of_format = shares(tree, distinct, decoder, memory=memory)
    found: dict[str, LeakEstimate] = {}
    for secret, share in zip(distinct, of_format.tolist(), strict=True):
        found[secret] = attack.estimate(secret, share, tolerance, budget, memory)
        if progress is not None:
            likeliest = max(leak.low for leak in found.values())
            expansions = sum(leak.expansions for leak in found.values())
            progress(expansions, 0, -math.log2(likeliest) if likeliest > 0 else math.inf)
    return [found[secret] for secret in secrets]


@dataclass(frozen=True)
class _Attack:
    """A prompt, a decoder, and what counts as the secret."""

    tree: SecretTree
    decoder: Decoder
    rounding: Rounding
    edits: int
    levenshtein: bool
    prompt: GivenPrompt
    vocabulary: WrittenTokens

    @classmethod
    def on(
        cls,
        tree: SecretTree,
        decoder: Decoder,
        rounding: Rounding,
        edits: int,
        levenshtein: bool,
        given: str | None,
    ) -> _Attack:
        """What is the same for all secrets of a tree."""
        known = tree.spelling.known
        if given is not None and not (isinstance(given, str) and known.startswith(given)):
            raise ArgumentError(
                f"prompt is {given!r}; expected {known!r}, which all secrets begin with, or a beginning of it. To give "
                "away more of the secret, use tree.starting_with(...)."
            )
        prompt = read_prompt(tree.tokenizer, known if given is None else given)
        first = prompt.tokens[min(len(surroundings_of(tree.tokenizer).lead), len(prompt.tokens) - 1)]
        vocabulary = WrittenTokens(pieces_of(tree.tokenizer, tree.spelling.vocab_size, first, Texts.of(tree.format)))
        return cls(tree, decoder, rounding, edits, levenshtein, prompt, vocabulary)

    def estimate(self, secret: str, share: float, tolerance: float, budget: int, memory: int) -> LeakEstimate:
        """Walk over the spellings of one secret."""
        target = self._target(secret)
        priced = partial(self.decoder.bounds, rounding=self.rounding.bits * _LN2, repeatable=self.rounding.repeatable)
        mass = heaviest_first(
            self.tree, self.prompt.tokens, target, priced, tolerance=tolerance, budget=budget, memory=memory
        )
        low, high = self._certain(mass.low, mass.high + mass.open)
        texts = self._by_text(mass, target, secret)
        if len(secret) == self.prompt.covered:  # the prompt is all of it: whatever is written begins with it
            low = high = 1.0
            texts[secret] = low, high
        verbatim = texts.pop(secret, (0.0, high))  # the walk may not have come to it
        misses = [NearMiss(text, *bounds, *marked(text, secret)) for text, bounds in texts.items()]
        return LeakEstimate(
            secret=secret,
            low=low,
            high=high,
            share=share,
            expansions=mass.expansions,
            near_misses=tuple(sorted(misses, key=lambda miss: (-miss.low, -miss.high, miss.text))),
            decoder=self.decoder,
            edits=self.edits,
            verbatim=verbatim,
        )

    def _by_text(self, mass: Mass, target: LeakTarget, secret: str) -> dict[str, tuple[float, float]]:
        """Between what the probability of each text lies that the walk has come to."""
        covered = secret[: self.prompt.covered]
        if target.plain:
            return {covered + target.text(written): self._certain(*mass.of(written)) for written in mass.found}
        # Several strings of bytes may read as the same text: all that waits may lead to it.
        waiting, sums = math.fsum(mass.waiting.values()), dict[str, tuple[float, float]]()
        for written, (low, high) in mass.found.items():
            text = covered + target.text(written)
            before = sums.get(text, (0.0, 0.0))
            sums[text] = before[0] + low, before[1] + high
        return {text: self._certain(low, high + waiting) for text, (low, high) in sums.items()}

    def _certain(self, low: float, high: float) -> tuple[float, float]:
        """Room for the rounding of the model, which a temperature below 1 enlarges, and for that of sums."""
        bits = self.rounding.bits * max(1.0, 1.0 / self.decoder.temperature)
        return low * 2.0**-bits * (1.0 - _SUMMING), min(1.0, high * 2.0**bits * (1.0 + _SUMMING))

    def _target(self, secret: str) -> LeakTarget:
        """The texts that count as the secret, behind the prompt."""
        ahead, known = self.prompt.ahead, self.tree.spelling.known
        before, rest = ahead + known, secret[len(known) :]
        if self.levenshtein:
            if self.edits >= len(rest):
                raise ArgumentError(
                    f"edits is {self.edits}; expected fewer than the {len(rest)} characters of {rest!r}: with so many, "
                    "every text counts."
                )
            texts = by_levenshtein(before, rest, self._alphabet(), self.edits)
        else:
            allowed = self.tree.format.alternatives(secret)[len(known) :]
            texts = by_substitution(before, rest, allowed, self.edits)
        start = walk(texts, ahead + known[: self.prompt.covered], texts.start)
        assert start is not None, "the prompt leads into the texts behind it"
        return LeakTarget(as_bytes(self.tree.tokenizer, texts, len(before)), start, self.vocabulary)

    def _alphabet(self) -> frozenset[str]:
        """All characters that occur in secrets behind the prompt."""
        texts = Texts.of(self.tree.format)
        behind = walk(texts, self.tree.spelling.known, texts.start)
        assert behind is not None, "every secret begins with what is known"
        return frozenset(steps_behind(texts, behind))
