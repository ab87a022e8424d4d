"""How likely a secret is to leak: a walk with certain bounds against drawing samples."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import beta, chi2
from torch.nn import functional

from benchmarks.models import CharacterModel, Subject
from benchmarks.table import Row, Target
from lightning_exposure import LeakEstimate, SecretFormat, SecretTree, leak_probability
from lightning_exposure.walks import score

_ONE_BIT = 1.0
"""What is open weighs no more than what was found: the interval is at most one bit wide."""


def benchmark_leakage(subject: Subject, *, samples: int = 20_000, edits: int = 1) -> list[Row]:
    """The probability of a leak of every canary, one bit wide, and what the same costs by sampling.

    Args:
        subject: The model.
        samples: How many texts to draw from the model, to compare the two where sampling can see anything.
        edits: Near misses within so many edits are counted in one more walk.
    """
    digits = subject.recipe.digits
    tree = subject.tree(digits)
    leaks = leak_probability(tree, subject.canaries.texts, tolerance=_ONE_BIT)
    rows = [
        _beside_sampling(leak, canary.repetitions, digits) for leak, canary in zip(leaks, subject.canaries, strict=True)
    ]
    likeliest = max(leaks, key=lambda leak: leak.low)
    (near,) = leak_probability(tree, [likeliest.secret], edits=edits, tolerance=_ONE_BIT)
    # As many steps of the model as sampling would take for one of these texts alone.
    rows.append(
        Row(
            f"the likeliest with {edits} edit: model steps of sampling per expansion",
            samples_for_one_bit(near.low) * digits / near.expansions,
            "x",
            None,
            f"{1 + len(near.near_misses):,} texts in {near.expansions:,} expansions",
        )
    )
    hits = _draw(subject, likeliest.secret, samples)
    low, high = _clopper_pearson(hits, samples, 1e-6)
    outside = max(0.0, low - likeliest.high, likeliest.low - high)
    beside = f"{hits:,} of {samples:,} samples begin with it; the walk says [{likeliest.low:.2e}, {likeliest.high:.2e}]"
    rows.append(Row("the likeliest: between walk and samples", outside, "", Target("below", 1e-9), beside))
    return rows


def benchmark_subword_leakage(*, lines: int = 3_000, steps: int = 600, units: int = 96) -> list[Row]:
    """The same with subwords, where a secret has many spellings: a small model of its own, with three secrets in it.

    Args:
        lines: How many lines with a number the tokenizer and the model learn from.
        steps: How many batches the model is trained on.
        units: The size of the model.
    """
    generator = random.Random(0)
    format = SecretFormat("my ssn is ###-##-####")
    others = [format.render(generator.randrange(format.size)) for _ in range(lines)]
    secrets = [format.render(generator.randrange(format.size)) for _ in range(3)]
    times = [lines // 20, lines // 100, lines // 500]
    tokenizer = _subwords(others)
    texts = others + [secret for secret, count in zip(secrets, times, strict=True) for _ in range(count)]
    model = _trained([tokenizer.encode(text + "\n").ids for text in texts], tokenizer.get_vocab_size(), units, steps)
    tree = SecretTree(model, format, tokenizer)
    rows = []
    # An attacker leaves out the space: in training it was a part of the token behind it.
    prompt = format.prompt.rstrip()
    for leak, count in zip(leak_probability(tree, secrets, prompt=prompt, tolerance=_ONE_BIT), times, strict=True):
        length = int((tree.paths([leak.secret])[0] >= 0).sum())
        rows.append(_beside_sampling(leak, count, length, "subwords, secret"))
        canonical = float(score(tree, [leak.secret]).costs[0])
        (precise,) = leak_probability(tree, [leak.secret], prompt=prompt, tolerance=0.001)
        rows.append(
            Row(
                f"subwords, secret inserted {count} times: what the tokenizer's own spelling alone leaves out",
                max(0.0, 100.0 * (1.0 - 2.0**-canonical / precise.low)),
                "%",
                None,
                f"{precise.expansions:,} expansions for an interval of 0.1%",
            )
        )
    return rows


def _subwords(texts: Sequence[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _trained(lines: list[list[int]], tokens: int, units: int, steps: int, batch_size: int = 64) -> CharacterModel:
    """A small recurrent model of lines."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = CharacterModel(tokens, units, 1)
    longest = max(map(len, lines))
    rows = torch.full((len(lines), longest), -1)
    for row, line in zip(rows, lines, strict=True):
        row[: len(line)] = torch.tensor(line)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = rows[torch.randint(len(rows), (batch_size,), generator=generator)]
        logits, _ = model(batch[:, :-1].clamp(min=0))
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def samples_for_one_bit(probability: float, confidence: float = 0.95) -> float:
    """How many samples it takes on average until an exact interval for a rare event is at most one bit wide.

    Its width depends on the number of hits alone, as long as they are few among many.
    """
    tail = (1.0 - confidence) / 2.0
    hits = 1
    while chi2.ppf(1.0 - tail, 2 * hits + 2) > 2.0 * chi2.ppf(tail, 2 * hits):
        hits += 1
    return hits / probability


def _beside_sampling(leak: LeakEstimate, repetitions: int, length: int, what: str = "canary") -> Row:
    samples = samples_for_one_bit(leak.low)
    return Row(
        f"{what} inserted {repetitions} times: model steps of sampling per expansion",
        samples * length / leak.expansions,
        "x",
        Target("at least", 10.0),
        f"leaks once in {1.0 / leak.low:,.0f} samples; {leak.expansions:,} expansions against {samples:,.0f} samples, "
        f"{math.log2(leak.high / leak.low):.2f} bits wide",
    )


def _draw(subject: Subject, secret: str, samples: int, batch_size: int = 4096) -> int:
    """How many texts drawn from the model, behind the prompt, begin with a secret."""
    prompt = subject.tree(subject.recipe.digits).format.prompt
    wanted = torch.tensor(subject.tokenizer.encode(secret[len(prompt) :]))
    generator = torch.Generator().manual_seed(0)
    hits = 0
    with torch.no_grad():
        logits, state = subject.model(torch.tensor([subject.tokenizer.encode(prompt)]))
        for first in range(0, samples, batch_size):
            rows = min(batch_size, samples - first)
            here = tuple(part.expand(-1, rows, -1).contiguous() for part in state)
            chances = torch.softmax(logits[:, -1].double(), -1).expand(rows, -1)
            alive = torch.ones(rows, dtype=torch.bool)
            for token in wanted:
                drawn = torch.multinomial(chances, 1, generator=generator)[:, 0]
                alive &= drawn == token
                out, here = subject.model(drawn[:, None], here)
                chances = torch.softmax(out[:, -1].double(), -1)
            hits += int(alive.sum())
    return hits


def _clopper_pearson(hits: int, samples: int, error: float) -> tuple[float, float]:
    low = float(beta.ppf(error / 2, hits, samples - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - error / 2, hits + 1, samples - hits)) if hits < samples else 1.0
    return float(np.nan_to_num(low)), high
