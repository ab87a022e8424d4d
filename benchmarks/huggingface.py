"""A Hugging Face model with subword tokens: a prompt of sixty tokens that is read once, and nodes that share it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from benchmarks.memory import memory_row, peak_memory_of
from benchmarks.table import Row, Target, amount
from benchmarks.timing import best_of, best_of_both
from lightning_exposure import Extraction, SecretFormat, SecretTree, extract, measure_exposure
from lightning_exposure.adapters.huggingface.adapter import HuggingFaceAdapter
from lightning_exposure.data.corpora import python_topics
from lightning_exposure.exposure import PoorFitWarning
from lightning_exposure.walks import score

_BITS_PER_NAT = float(1.0 / np.log(2.0))


@dataclass(frozen=True)
class HuggingFaceRecipe:
    """All that decides what the model becomes."""

    vocabulary: int = 2048
    layers: int = 6
    width: int = 256
    heads: int = 8
    prompt: int = 60
    blanks: str = "###-##-####"
    steps: int = 100
    rows: int = 8
    window: int = 80
    learning_rate: float = 1e-3
    seed: int = 0


@dataclass(frozen=True)
class HuggingFaceSubject:
    """A model, its tokenizer, and the format of its secrets, one of which it may have seen."""

    model: Any
    tokenizer: Any
    format: SecretFormat
    secret: str

    def tree(self, batch_size: int = 4096, way: str | None = None) -> SecretTree:
        return SecretTree(HuggingFaceAdapter(self.model, way=way), self.format, self.tokenizer, batch_size=batch_size)


def make_subject(recipe: HuggingFaceRecipe, *, trained: bool) -> HuggingFaceSubject:
    """A GPT-2 and a byte-level BPE tokenizer for the text that comes with Python."""
    text = python_topics()
    tokenizer = train_tokenizer([text], recipe.vocabulary)
    format_ = _format_with_prompt(text, tokenizer, recipe)
    (secret,) = format_.sample(1, seed=recipe.seed)
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=len(tokenizer), n_positions=128, n_embd=recipe.width, n_layer=recipe.layers,
                n_head=recipe.heads, bos_token_id=0, eos_token_id=0,
            )
        )  # fmt: skip
    model.loss_type = "ForCausalLM"  # what it would take anyway, with a warning
    subject = HuggingFaceSubject(model.eval(), tokenizer, format_, secret)
    if trained:
        _train(subject, text, recipe)
    return subject


def train_tokenizer(texts: Sequence[str], size: int) -> Any:
    """A byte-level BPE tokenizer of at most so many tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def _format_with_prompt(text: str, tokenizer: Any, recipe: HuggingFaceRecipe) -> SecretFormat:
    """A format that begins with a passage of the text, and has so many tokens before its first blank."""
    introduction = " Her social security number is "
    room = recipe.prompt - len(tokenizer.encode(introduction.rstrip()))
    plain = "".join(character for character in text if character.isalpha() or character in " .,")
    passage = tokenizer.decode(tokenizer.encode(plain[:4000])[:room])
    return SecretFormat(passage + introduction + recipe.blanks)


def _train(subject: HuggingFaceSubject, text: str, recipe: HuggingFaceRecipe) -> None:
    """Windows of the text, and the secret in every step: the same recipe gives the same weights."""
    generator = torch.Generator().manual_seed(recipe.seed)
    tokens = torch.tensor(subject.tokenizer.encode(text))
    secret = torch.tensor(subject.tokenizer.encode(subject.secret))[None]
    optimizer = torch.optim.AdamW(subject.model.parameters(), lr=recipe.learning_rate)
    subject.model.train()
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        for _ in range(recipe.steps):
            starts = torch.randint(len(tokens) - recipe.window, (recipe.rows,), generator=generator)
            windows = tokens[starts[:, None] + torch.arange(recipe.window)]
            loss = subject.model(windows, labels=windows).loss + subject.model(secret, labels=secret).loss / recipe.rows
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    subject.model.eval()


def benchmark_huggingface(
    recipe: HuggingFaceRecipe | None = None,
    *,
    secrets: int = 16_384,
    fully: int = 1_024,
    batch_size: int = 512,
    expansions: int = 40_000,
    largest_batch: int = 256,
    repeats: int = 2,
) -> list[Row]:
    """Scoring, searching and counting with a GPT-2 of six layers of 256.

    Args:
        recipe: Of the model.
        secrets: How many to score along the tree.
        fully: How many of them to score with full passes; their time is scaled up.
        batch_size: Of both.
        expansions: How long a search goes on in a model that has learned nothing.
        largest_batch: Of the search.
        repeats: The fastest of so many runs counts.
    """
    recipe = recipe or HuggingFaceRecipe()
    flat = make_subject(recipe, trained=False)
    begin = time.perf_counter()
    trained = make_subject(recipe, trained=True)
    seconds = time.perf_counter() - begin
    return [
        *_scoring(flat, secrets, fully, batch_size, repeats),
        *_searching(flat, expansions, largest_batch),
        *_counting(trained, seconds, repeats),
    ]


def _scoring(subject: HuggingFaceSubject, secrets: int, fully: int, batch_size: int, repeats: int) -> list[Row]:
    tree, repeating = subject.tree(batch_size), subject.tree(batch_size, way="cache")
    texts = tree.format.sample(secrets, seed=1)
    some = texts[:fully]
    score(tree, some)  # the first run of anything is slower
    shared, full, shared_seconds, some_seconds = best_of_both(
        repeats, lambda: score(tree, texts), lambda: full_pass_costs(tree, subject.model, some, batch_size)
    )
    _, repeated_seconds = best_of(1, lambda: score(repeating, texts))
    full_seconds = some_seconds * len(texts) / len(some)
    what = f"GPT-2, {secrets:,} secrets {subject.format.pattern[-11:]} after {len(tree.spelling.root)} tokens"
    return [
        Row(
            f"{what}: faster than full passes",
            full_seconds / shared_seconds,
            "x",
            Target("at least", 8.0),
            f"{amount(shared_seconds, 's')} against {amount(full_seconds, 's')} (scaled from {len(some):,} secrets)",
        ),
        Row(
            f"{what}: the same with the prompt repeated in every batch",
            full_seconds / repeated_seconds,
            "x",
            None,
            f"{amount(repeated_seconds, 's')}; for models with an attention of their own making",
        ),
        Row(
            f"{what}: largest difference of a cost",
            float(np.abs(shared.costs[: len(some)] - full).max()),
            "bits",
            Target("below", 0.001),
            f"of {full.min():.1f} to {full.max():.1f} bits; {shared.expansions:,} expansions",
        ),
    ]


def full_pass_costs(tree: SecretTree, model: Any, secrets: Sequence[str], batch_size: int) -> NDArray[np.float64]:
    """The log-perplexity of each secret, in bits, from full passes over rows of one length, without padding.

    As good as it gets without sharing: only the logits that are needed are computed, and nothing is cached.
    """
    paths = tree.paths(secrets)
    root = torch.tensor(tree.spelling.root)
    lengths = (paths >= 0).sum(axis=1)
    costs = np.empty(len(paths))
    with torch.no_grad():
        for length in np.unique(lengths).tolist():
            of_length = np.flatnonzero(lengths == length)
            for start in range(0, len(of_length), batch_size):
                rows = of_length[start : start + batch_size]
                own = torch.from_numpy(paths[rows, :length].astype(np.int64))
                tokens = torch.cat([root.expand(len(rows), -1), own], dim=1)[:, :-1]
                logits = model(tokens, use_cache=False, logits_to_keep=length).logits
                chosen = functional.log_softmax(logits, dim=-1).gather(2, own[:, :, None])[:, :, 0]
                costs[rows] = -chosen.double().sum(dim=1).numpy() * _BITS_PER_NAT
    return costs


def search_for_nothing(subject: HuggingFaceSubject, expansions: int, batch: int) -> Extraction:
    """A search in a model that was never trained."""
    return extract(subject.tree(), budget=expansions, largest_batch=batch)


def _searching(subject: HuggingFaceSubject, expansions: int, batch: int) -> list[Row]:
    tree = subject.tree()
    before = len(tree.spelling.root) + tree.automaton.depth // 2
    # Turn and turn about, so that a time in which the machine is busy meets all.
    bare, without = bare_steps_per_second(subject.model, batch, before), bare_steps_per_second(subject.model, batch, 0)
    found = search_for_nothing(subject, expansions, batch)
    bare = max(bare, bare_steps_per_second(subject.model, batch, before))
    without = max(without, bare_steps_per_second(subject.model, batch, 0))
    speed = found.expansions / found.seconds
    what = f"GPT-2, a search of {found.expansions:,} expansions that finds nothing"
    return [
        Row(
            f"{what}: share of the bare model's speed",
            100 * speed / bare,
            "%",
            Target("at least", 50.0),
            f"{speed:,.0f} expansions/s; the model's step alone, {batch:,} rows with {before} tokens in its own cache: "
            f"{bare:,.0f} rows/s; ended by {found.ended_by}",
        ),
        Row(
            f"{what}: share of the speed with nothing to look back at",
            100 * speed / without,
            "%",
            None,
            f"the model's step alone, {batch:,} rows of a single token without a cache: {without:,.0f} rows/s",
        ),
        memory_row(f"{what}, with a limit of 1 GiB", peak_memory_of(search_for_nothing, subject, expansions, batch)),
    ]


def bare_steps_per_second(model: Any, rows: int, before: int, rounds: int = 4) -> float:
    """How many rows the model alone reads per second, one token each, with so many tokens before in its own cache."""
    tokens = torch.arange(rows)[:, None] % model.config.vocab_size
    seconds = []
    with torch.no_grad():
        cache = DynamicCache()
        if before:
            model(torch.arange(before)[None], past_key_values=cache, use_cache=True)
            cache.batch_repeat_interleave(rows)
        for _ in range(rounds):
            begin = time.perf_counter()
            model(tokens, past_key_values=cache if before else None, use_cache=before > 0)
            seconds.append(time.perf_counter() - begin)
    return rows / min(seconds)


def _counting(subject: HuggingFaceSubject, trained_seconds: float, repeats: int) -> list[Row]:
    tree = subject.tree()

    def measure(method: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PoorFitWarning)  # how poor is what the row says
            return measure_exposure(tree, [subject.secret], method)[0]

    exact, exact_seconds = best_of(repeats, lambda: measure("exact"))
    what = f"GPT-2, exposure of a memorized secret, rank {exact.rank:,} of {tree.size:,}"
    rows = [
        Row(
            f"{what}: exact count",
            exact.expansions,
            "expansions",
            None,
            f"{exact.bits:.2f} of {exact.size_bits:.2f} bits in {amount(exact_seconds, 's')}; "
            f"trained in {trained_seconds:.0f} s",
        )
    ]
    for name, method in (("importance sampling", "importance"), ("skew-normal", "skewnormal")):
        estimate, seconds = best_of(1, lambda method=method: measure(method))
        rows.append(
            Row(
                f"{what}: error of {name}",
                abs(estimate.bits - exact.bits),
                "bits",
                Target("below", 0.3) if method == "importance" else None,
                f"{estimate.bits:.2f} bits; {estimate.expansions:,} expansions in {amount(seconds, 's')}",
            )
        )
    return rows
