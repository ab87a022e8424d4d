"""A GPT-2 as it comes, 124 million parameters and 50,257 tokens: what is it worth to know the last digit?"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.huggingface import train_tokenizer
from benchmarks.precision import covers, total_expansions
from benchmarks.table import Row, Target
from lightning_exposure import CanarySet, SecretFormat, SecretTree, measure_exposure
from lightning_exposure.data.corpora import python_topics

_PRECISION = 0.25


@dataclass(frozen=True)
class GPT2Recipe:
    """All that decides what the model becomes.

    Args:
        vocabulary: Of the model. The tokenizer has at most as many, fewer if its text gives no more.
        layers: Of the model.
        width: Of the model.
        heads: Of the model.
        repetitions: How often each canary is seen in 16 steps of training.
        steps: Of training.
        rows: Windows of text in each step.
        window: Tokens of each.
        learning_rate: Of AdamW.
        seed: Of everything.
    """

    vocabulary: int = 50_257
    layers: int = 12
    width: int = 768
    heads: int = 12
    repetitions: tuple[int, ...] = (1, 2, 4, 8, 16)
    steps: int = 32
    rows: int = 4
    window: int = 32
    learning_rate: float = 1e-4
    seed: int = 0


def benchmark_gpt2(
    recipe: GPT2Recipe | None = None, *, format: SecretFormat | None = None, budget: int = 100_000, samples: int = 4096
) -> list[Row]:
    """Five canaries, measured with all that `samples` and `budget` allow, and to a quarter of a bit.

    Args:
        recipe: Of the model.
        format: Of the canaries; None: social security numbers.
        budget: Of both measurements.
        samples: Of both measurements.
    """
    recipe = recipe or GPT2Recipe()
    canaries = CanarySet.draw(format or SecretFormat.ssn(), repetitions=recipe.repetitions, seed=recipe.seed)
    begin = time.perf_counter()
    model, tokenizer = _trained(recipe, canaries)
    trained = time.perf_counter() - begin
    tree = SecretTree(model, canaries[0].format, tokenizer)

    def measure(precision: float | None) -> tuple[Any, float]:
        begin = time.perf_counter()
        found = measure_exposure(tree, canaries.texts, budget=budget, samples=samples, precision=precision)
        return found, time.perf_counter() - begin

    everything, seconds = measure(None)
    enough, fewer_seconds = measure(_PRECISION)
    before, after = total_expansions(everything), total_expansions(enough)
    known = [
        (one, other) for one, other in zip(enough, everything, strict=True) if other.method in ("exact", "counted")
    ]
    size = sum(parameter.numel() for parameter in model.parameters())
    what = f"GPT-2 of {size / 1e6:.0f} million parameters, {len(canaries)} canaries at precision {_PRECISION:g}"
    said = ", ".join(f"{estimate.bits:.2f} ({estimate.method})" for estimate in everything)
    return [
        Row(
            f"{what}: fewer expansions than without a precision",
            before / after,
            "x",
            Target("at least", 5.0),
            f"{after:,} against {before:,}, {fewer_seconds:.1f} s against {seconds:.1f} s; trained in {trained:.0f} s",
        ),
        Row(
            f"{what}: largest error",
            max((abs(one.bits - other.bits) for one, other in known), default=0.0),
            "bits",
            Target("below", _PRECISION),
            f"{sum(covers(one, other.bits) for one, other in known)} of {len(known)} intervals hold the value that was "
            f"counted; all of them without a precision: {said} bits",
        ),
        Row(
            f"{what}: widest interval",
            max(estimate.high - estimate.low for estimate in enough),
            "bits",
            None,
            f"without a precision: {max(estimate.high - estimate.low for estimate in everything):.2f} bits",
        ),
    ]


def _trained(recipe: GPT2Recipe, canaries: CanarySet) -> tuple[Any, Any]:
    """A GPT-2 that has read a little, and some canaries more often than others; and its tokenizer."""
    text = python_topics()
    # Numbers of up to three digits become tokens, as in the vocabulary of the real one.
    numbers = " ".join(str(number) for number in range(1000))
    tokenizer = train_tokenizer([text, *[numbers] * 20], recipe.vocabulary)
    tokens = torch.tensor(tokenizer.encode(text))
    own = [torch.tensor(tokenizer.encode(canary.text))[None] for canary in canaries]
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=recipe.vocabulary, n_embd=recipe.width, n_layer=recipe.layers, n_head=recipe.heads,
                bos_token_id=0, eos_token_id=0,
            )
        )  # fmt: skip
        model.loss_type = "ForCausalLM"  # what it would take anyway, with a warning
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate)
        for step in range(recipe.steps):
            starts = torch.randint(len(tokens) - recipe.window, (recipe.rows,), generator=generator)
            windows = tokens[starts[:, None] + torch.arange(recipe.window)]
            seen = [secret for secret, times in zip(own, recipe.repetitions, strict=True) if step * times % 16 < times]
            loss = model(windows, labels=windows).loss
            for secret in seen:
                loss = loss + model(secret, labels=secret).loss / recipe.rows
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval(), tokenizer
