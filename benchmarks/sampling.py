"""Free sampling with the adapters' states, beside the bare model: tokens per second."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.models import CharacterModel
from benchmarks.table import Row, Target
from benchmarks.timing import best_of_both
from lightning_exposure import CanarySet, CharTokenizer, SecretFormat
from lightning_exposure.leakage import sample_leaks
from lightning_exposure.secrets import Scanner

_TOKENIZER = CharTokenizer([*map(chr, range(32, 127)), "\n"])


def benchmark_sampling(
    *, units: int = 200, width: int = 128, samples: int = 128, length: int = 100, repeats: int = 3
) -> list[Row]:
    """`sample_leaks` beside a loop that does nothing but step the model, with its own state, over given tokens.

    What the loop leaves out: drawing the tokens, making text of them, and looking for secrets in it.

    Args:
        units: Of the LSTM, which has two layers.
        width: Of the GPT-2, which has four layers.
        samples: How many texts, written at once.
        length: How many tokens each of them has.
        repeats: How often each is timed; the fastest counts.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lstm = CharacterModel(_TOKENIZER.vocab_size, units, 2).eval()
        gpt2 = _gpt2(width, length + 1)
        given = torch.randint(_TOKENIZER.vocab_size, (length, samples))
    canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=[1] * 20, seed=0)
    rows = []
    for name, model, bare in (("LSTM", lstm, _step_lstm), ("GPT-2", gpt2, _step_gpt2)):
        looked_for = {"20 canaries": (canaries, None), "a scanner": (Scanner(), canaries.texts)}
        for what, (wanted, training) in looked_for.items():
            ours = partial(
                sample_leaks, model, _TOKENIZER, wanted, training, samples=samples, length=length, batch_size=samples
            )
            rows.append(_beside(f"{name}, {what}", ours, partial(bare, model, given), samples * length, repeats))
    return rows


def _beside(what: str, ours: Callable[[], Any], bare: Callable[[], Any], tokens: int, repeats: int) -> Row:
    _, _, seconds, bare_seconds = best_of_both(repeats, ours, bare)
    return Row(
        f"free sampling, {what}: of the bare model's tokens per second",
        100.0 * bare_seconds / seconds,
        "%",
        Target("at least", 50.0),
        f"{tokens / seconds:,.0f} tokens per second against {tokens / bare_seconds:,.0f}",
    )


@torch.no_grad()
def _step_lstm(model: Any, given: Tensor) -> None:
    state = None
    for tokens in given:
        _, state = model(tokens[:, None], state)


@torch.no_grad()
def _step_gpt2(model: Any, given: Tensor) -> None:
    cache = None
    for tokens in given:
        cache = model(tokens[:, None], past_key_values=cache, use_cache=True).past_key_values


def _gpt2(width: int, positions: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel  # an extra that the other benchmarks do without

    config = GPT2Config(
        vocab_size=_TOKENIZER.vocab_size,
        n_embd=width,
        n_layer=4,
        n_head=4,
        n_positions=positions,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config).eval()
