"""The scorer "lm": small recurrent networks, trained on the passages of a release where a secret could stand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from lightning_exposure._checks import number, whole_number
from lightning_exposure.data.randomness import seeded
from lightning_exposure.defences.sanitizing.scoring import TextScorer
from lightning_exposure.modules.recurrent import RecurrentNetwork
from lightning_exposure.synthetic.text._ngrams import NgramModel
from lightning_exposure.synthetic.text.scorers._registered import SCORERS, AskedSecret, Floats
from lightning_exposure.tokenization import CharTokenizer

_CUE = 12
"""So many characters of a prompt, the last ones, say that a secret may follow."""
_FEWEST = 32
"""With fewer passages than this behind prompts, all of the release is read."""
_PADDING = "\0"


@dataclass(frozen=True)
class NeuralScorer:
    """By how many bits a secret is cheaper for small networks than by the frequencies of its characters alone.

    They read what stands in the release behind the prompts of the secrets, which a model of the whole release would
    hardly notice; where prompts hardly occur, or are empty, they read the whole release. Several networks with
    different first weights are averaged: what they have in common is what the release says.

    Args:
        networks: How many.
        hidden_size: Units of each.
        steps: How many batches each is trained on.
        batch_size: How many passages a batch has.
        lr: The learning rate of Adam.
    """

    networks: int = 3
    hidden_size: int = 64
    steps: int = 400
    batch_size: int = 64
    lr: float = 0.005

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        for name in ("networks", "hidden_size", "steps", "batch_size"):
            whole_number(name, getattr(self, name), at_least=1)
        number("lr", self.lr, above=0)

    def __call__(self, texts: Sequence[str], asked: Sequence[AskedSecret], *, seed: int = 0) -> Floats:
        """The scores."""
        strings = [secret.text[max(0, secret.start - _CUE) :] for secret in asked]
        read = passages(texts, asked)
        if len(read) > self.steps * self.batch_size:  # more than will be read
            read = random.Random(seed).sample(read, self.steps * self.batch_size)
        tokenizer = CharTokenizer.from_text(_PADDING, *read, *strings)
        costs = np.zeros(len(asked))
        for place in range(self.networks):
            model = self._trained(read, tokenizer, seed * self.networks + place)
            costs += TextScorer(model, tokenizer, before=_PADDING)(strings) / self.networks
        plain = NgramModel(texts, [secret.text for secret in asked], order=1)
        by_frequency = plain.bits_by_order([secret.text[secret.start :] for secret in asked])
        return np.array([bits.sum() for bits in by_frequency]) - costs

    def _trained(self, read: Sequence[str], tokenizer: CharTokenizer, seed: int) -> RecurrentNetwork:
        """A network that has read passages, drawn at random; no other random number changes by it."""
        with seeded(seed):
            model = RecurrentNetwork(
                tokenizer.vocab_size, cell="gru", hidden_size=self.hidden_size, num_layers=1, embedding_size=32
            )
        luck = torch.Generator().manual_seed(seed)
        padding = tokenizer.encode(_PADDING)[0]
        rows = nn.utils.rnn.pad_sequence(
            [torch.tensor(tokenizer.encode(_PADDING + text)) for text in read], batch_first=True, padding_value=padding
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=self.lr)
        for _ in range(self.steps):
            batch = rows[torch.randint(len(rows), (self.batch_size,), generator=luck)]
            optimizer.zero_grad()
            _loss(model, batch, padding).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return model.eval()


def _loss(model: nn.Module, batch: Tensor, padding: int) -> Tensor:
    logits, _ = model(batch[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), ignore_index=padding)


def passages(texts: Sequence[str], asked: Sequence[AskedSecret]) -> list[str]:
    """What stands behind the prompts of secrets in some texts, with the ends of the prompts; or all, if that is little.

    Example:
        >>> passages(["so my pin is 1234 or so", "nothing"] * 20, [AskedSecret("my pin is 5678", 10)])[:2]
        ['my pin is 1234', 'my pin is 1234']
        >>> passages(["nothing", "at all"], [AskedSecret("my pin is 5678", 10)])
        ['nothing', 'at all']
    """
    longest: dict[str, int] = {}
    for secret in asked:
        cue = secret.text[max(0, secret.start - _CUE) : secret.start]
        longest[cue] = max(longest.get(cue, 0), len(secret.text) - secret.start + len(cue))
    found = []
    for cue, length in longest.items():
        for text in texts if cue else ():
            place = text.find(cue)
            while place >= 0:
                found.append(text[place : place + length])
                place = text.find(cue, place + 1)
    if len(found) >= _FEWEST and "" not in longest:
        return found
    width = 2 * max(longest.values())
    cuts = (text[begin : begin + width] for text in texts for begin in range(0, len(text), width // 2))
    return [*found, *(cut for cut in cuts if cut)]


SCORERS.register("lm")(NeuralScorer())
