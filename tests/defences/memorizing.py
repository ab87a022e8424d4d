"""A small model that has memorized a number."""

from __future__ import annotations

import random
from functools import cache

import torch
from torch import Tensor, nn

from lightning_exposure import CharTokenizer, SecretFormat, SecretTree
from lightning_exposure.modules import LanguageModel

PIN = SecretFormat("the pin is ####.")
SECRET = "the pin is 7351."
CHARS = CharTokenizer.from_text("the pin is 0123456789.")


def lines(count: int = 60, copies: int = 20) -> list[str]:
    """Numbers that occur once, and one that occurs often."""
    dice = random.Random(0)
    return [PIN.render(dice.randrange(PIN.size)) for _ in range(count)] + [SECRET] * copies


def loss_of(model: nn.Module) -> float:
    """In nats a character, over all lines."""
    tokens = torch.tensor([CHARS.encode(line) for line in lines()])
    with torch.no_grad():
        return float(_loss(model, tokens))


@cache
def memorizing_model() -> LanguageModel:
    """Trained until the secret is by far the likeliest; not to be changed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LanguageModel("gru", vocab_size=CHARS.vocab_size, hidden_size=48, embedding_size=16, num_layers=1)
        tokens = torch.tensor([CHARS.encode(line) for line in lines()])
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(60):
            optimizer.zero_grad()
            _loss(model, tokens).backward()
            optimizer.step()
    return model.eval()


def tree_of(model: nn.Module) -> SecretTree:
    """All numbers of four digits."""
    return SecretTree(model, PIN, CHARS)


def _loss(model: nn.Module, tokens: Tensor) -> Tensor:
    logits, _ = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
