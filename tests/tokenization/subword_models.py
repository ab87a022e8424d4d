"""Subword tokenizers of all kinds, trained on the spot, and formats that try them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn

from lightning_exposure import SecretFormat
from lightning_exposure.data.corpora import python_topics
from lightning_exposure.errors import FormatError
from lightning_exposure.tokenization.spelling import Spelling
from tests import oracle

BOS, EOS = "<s>", "</s>"


@cache
def training_lines() -> list[str]:
    """Some English, and numbers enough for tokens of two and three digits."""
    generator = random.Random(0)
    numbers = [
        f"my ssn is {generator.randrange(1000):03d}-{generator.randrange(100):02d}-{generator.randrange(10_000):04d}"
        for _ in range(2000)
    ]
    names = [f"call {name} at {generator.randrange(1000)}" for name in ("José", "Zoë", "Jürgen", "Ana") * 40]
    return python_topics()[:60_000].split("\n") + numbers + names


def byte_level(size: int = 800, *, special: bool = False) -> Tokenizer:
    """As GPT-2's: BPE on bytes; with `special` BOS and EOS are added as by Llama's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[BOS, EOS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(training_lines(), trainer)
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A {EOS}", special_tokens=[(BOS, 0), (EOS, 1)]
        )
    return tokenizer


def unigram(size: int = 500, *, byte_fallback: bool = False) -> Tokenizer:
    """As T5's: Unigram with a sign for spaces; what it puts behind a text is </s>."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=["<pad>", EOS, "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(training_lines(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, 1)])
    return tokenizer


def wordpiece(size: int = 600) -> Tokenizer:
    """As BERT's: WordPiece on lower-case words, between [CLS] and [SEP]."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(training_lines(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def metaspace_bpe(size: int = 900) -> Tokenizer:
    """As Llama 2's: BPE on characters without any cuts, single bytes for characters that it lacks, and BOS."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    single_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<unk>", BOS, *single_bytes], limit_alphabet=60, show_progress=False
    )
    tokenizer.train_from_iterator(training_lines(), trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:2]  # the single bytes are tokens as others are
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 1)])
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level BPE": cache(byte_level),
    "Unigram": cache(unigram),
    "WordPiece": cache(wordpiece),
}
"""The three kinds that every walk must get right."""


def automaton_paths(spelling: Spelling) -> Iterator[list[int]]:
    """All complete paths of an automaton."""
    automaton = spelling.automaton
    stack: list[tuple[int, list[int]]] = [(automaton.start, [])]
    while stack:
        place, path = stack.pop()
        tokens, targets = automaton.children(place)
        for token, target in zip(tokens.tolist(), targets.tolist(), strict=True):
            if automaton.accepting(target):
                yield [*path, token]
            if automaton.open(target):
                stack.append((target, [*path, token]))


def loaded(tokenizer: Tokenizer, directory: Any, **options: Any) -> Any:
    """The tokenizer as one of `transformers`, saved to a directory and loaded from it."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options).save_pretrained(directory)
    return AutoTokenizer.from_pretrained(directory)


def spell(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a text as training saw them, without what the tokenizer puts behind a text."""
    encoding = tokenizer.encode(text)
    ids, special = list(encoding.ids), list(encoding.special_tokens_mask)
    while special[-1]:
        ids, special = ids[:-1], special[:-1]
    return ids


def shared_tokens(tokenizer: Tokenizer, format: SecretFormat) -> int:
    """How many tokens of the prompt are the same in every candidate, each of which keeps at least one of its own."""
    spelled = [spell(tokenizer, text) for text in oracle.all_texts(format)]
    ends = [end for _, end in tokenizer.encode(format.render(0)).offsets]
    count = 0
    while (
        all(len(tokens) > count + 1 and tokens[count] == spelled[0][count] for tokens in spelled)
        and len(format.prompt) >= ends[count]
    ):
        count += 1
    return count


def oracle_costs(model: nn.Module, format: SecretFormat, tokenizer: Tokenizer, free: int) -> dict[str, float]:
    """The cost of every secret after its first `free` tokens: each is encoded and read as a whole, without any tree."""
    texts = oracle.all_texts(format)
    spelled = [spell(tokenizer, text) for text in texts]
    assert all(tokens[:free] == spelled[0][:free] for tokens in spelled)
    costs = np.zeros(len(texts))
    lengths = np.array([len(tokens) for tokens in spelled])
    for length in np.unique(lengths):
        same = np.flatnonzero(lengths == length)
        for rows in np.array_split(same, 1 + len(same) // 1000):
            batch = torch.tensor([spelled[row] for row in rows])
            with torch.no_grad():
                output = model(batch)
            logits = (output[0] if isinstance(output, tuple) else output)[:, free - 1 : -1].double()
            nats = torch.log_softmax(logits, dim=-1).gather(2, batch[:, free:, None])[:, :, 0]
            costs[rows] = (-nats.sum(dim=1) / math.log(2)).numpy()
    return dict(zip(texts, costs.tolist(), strict=True))


LLAMA_3 = "|".join(
    [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]
)
"""How Llama 3 cuts texts: digits in groups of three."""

_LETTERS = "ab12-'é"


def random_tokenizer(seed: int) -> Tokenizer:
    """A tokenizer of some kind with a random small vocabulary, as no training would make it."""
    generator = random.Random(seed)
    return generator.choice([_random_bytes, _random_bytes, _random_characters, _random_unigram, _random_wordpiece])(
        generator
    )


def random_format(seed: int) -> SecretFormat | None:
    """A format of word lists in which everything that may go wrong stands side by side; None if it is not one."""
    generator = random.Random(seed)
    pattern, words = generator.choice(["ab ", "a 1", "b", "a b a", "1-", "ab", "a1 "]), {}
    for name in ("one", "two", "three")[: generator.randrange(1, 4)]:
        lengths = [generator.randrange(1, 5) for _ in range(generator.randrange(2, 7))]
        words[name] = sorted({_random_word(generator, length, _LETTERS + " ") for length in lengths})
        pattern += f"{{{name}}}" + generator.choice(["", "", " ", "-", "a", " b", "1"])
    try:
        format = SecretFormat(pattern, **words)
    except FormatError:
        return None
    return format if 2 <= format.size <= 300 else None


def _random_word(generator: random.Random, length: int, letters: str) -> str:
    return "".join(generator.choice(letters if generator.random() < 0.4 else "12") for _ in range(length))


def _random_merges(generator: random.Random, symbols: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    vocabulary = {symbol: i for i, symbol in enumerate(symbols)}
    merges: list[tuple[str, str]] = []
    for _ in range(generator.randrange(2, 25)):
        pair = generator.choice(list(vocabulary)), generator.choice(list(vocabulary))
        if len("".join(pair)) <= 5 and pair not in merges:
            merges.append(pair)
            vocabulary.setdefault("".join(pair), len(vocabulary))
    if generator.random() < 0.4:  # an order in which no training would find them
        generator.shuffle(merges)
    return vocabulary, merges


def _random_bytes(generator: random.Random) -> Tokenizer:
    vocabulary, merges = _random_merges(generator, "ab12-'ĠÃ©")
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=generator.random() < 0.3))
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = generator.choice(
        [
            pre_tokenizers.ByteLevel(add_prefix_space=generator.random() < 0.3),
            plain,
            pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA_3), "isolated"), plain]),
            pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=generator.random() < 0.5), plain]),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _random_characters(generator: random.Random) -> Tokenizer:
    missing = generator.choice(["", "é", "éa", "é1"])
    vocabulary, merges = _random_merges(generator, "".join(c for c in _LETTERS + "▁" if c not in missing))
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=generator.random() < 0.5)
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _random_unigram(generator: random.Random) -> Tokenizer:
    tokens = {*_LETTERS, "▁"}
    tokens |= {_random_word(generator, generator.randrange(2, 5), _LETTERS + "▁") for _ in range(20)}
    # Whole numbers make many spellings equally good, but for rounding.
    step = generator.choice([1.0, 0.1, math.pi])
    scores = [("<unk>", 0.0), *((token, -step * generator.randrange(1, 8)) for token in sorted(tokens))]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=0))
    spaces = pre_tokenizers.Metaspace(split=generator.random() < 0.5)
    splits = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])  # as T5's
    tokenizer.pre_tokenizer = generator.choice([spaces, splits])
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _random_wordpiece(generator: random.Random) -> Tokenizer:
    tokens = {*_LETTERS, *("##" + letter for letter in _LETTERS)}
    for _ in range(20):
        word = _random_word(generator, generator.randrange(2, 6), _LETTERS)
        tokens.add(word if generator.random() < 0.4 else "##" + word)
    vocabulary = {token: i for i, token in enumerate(["[UNK]", *sorted(tokens)])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = generator.choice(
        [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Whitespace(), pre_tokenizers.WhitespaceSplit()]
    )
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer
