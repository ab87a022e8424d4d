"""Tokenizers with added tokens of every kind, and formats that they stand in, made at random from a seed."""

from __future__ import annotations

import random
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from lightning_exposure import SecretFormat
from lightning_exposure.errors import FormatError
from tests.tokenization.subword_models import LLAMA_3

LETTERS = "abpin12- "
_WORDS = [
    "pin",
    "a",
    "b",
    "pi",
    "1",
    "12",
    "21",
    "112",
    "in",
    "n 1",
    " p",
    "p ",
    "a-",
    "-",
    " ",
    "PIN",
    "Ab",
    "2",
    "in pi",
]


def tokenizer_of(seed: int, kind: str) -> Tokenizer:
    """A small tokenizer of a kind, with a few added tokens."""
    generator = random.Random(seed)
    tokenizer = {"bytes": _bytes, "characters": _characters, "unigram": _unigram, "wordpiece": _wordpiece}[kind](
        generator
    )
    contents = generator.sample(_WORDS, generator.randrange(1, 5))
    # One token that swallows the space with which another begins is something that `tokenizers` itself cannot spell.
    rstrip = 0.0 if any(content.startswith(" ") or "in pi" in content for content in contents) else 0.3
    for content in contents:
        flags: dict[str, Any] = {
            name: generator.random() < chance
            for name, chance in {"lstrip": 0.4, "rstrip": rstrip, "single_word": 0.3, "special": 0.2}.items()
        }
        # (An empty content, which is what a normalizer may leave of a space, is found everywhere, for ever.)
        added = AddedToken(content, normalized=generator.random() < 0.5 and content != " ", **flags)
        (tokenizer.add_special_tokens if flags["special"] else tokenizer.add_tokens)([added])
    if generator.random() < 0.2:
        tokenizer.enable_truncation(4)
    if generator.random() < 0.2:
        tokenizer.enable_padding(length=12)
    if generator.random() < 0.3:
        tokenizer.add_special_tokens(["<bos>", "<eos>"])
        ends = [(name, tokenizer.token_to_id(name)) for name in ("<bos>", "<eos>")]
        tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=ends)
    return tokenizer


def format_of(seed: int) -> SecretFormat | None:
    """A format of 2 to a few thousand secrets in which added tokens may stand; None if it is not one."""
    generator = random.Random(seed)
    pattern = generator.choice(["a ", "b a", "pin ", "a pin", "a", "b p", "b pi", "1", "a  ", "ab-", "-1 ", "b 1"])
    words: dict[str, list[str]] = {}
    for name in ("one", "two", "three")[: generator.randrange(1, 4)]:
        kind = generator.random()
        if kind < 0.4:
            words[name] = list("pin12" if generator.random() < 0.7 else "abpin12-")
        elif kind < 0.7:
            words[name] = sorted({_word(generator) for _ in range(generator.randrange(2, 9))})
        else:
            words[name] = generator.sample(["pin", "pi", "in", "12", " pin", "a", "pin ", "21", "p in"], 3)
        pattern += f"{{{name}}}" + generator.choice(["", "", "", " ", "-", "in", " 1"])
    try:
        format = SecretFormat(pattern, **words)
    except FormatError:  # some texts would be made in two ways
        return None
    return format if format.size >= 2 else None


def _word(generator: random.Random) -> str:
    return "".join(generator.choice(LETTERS) for _ in range(generator.randrange(1, 5)))


def _merges(generator: random.Random, symbols: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    vocabulary = {symbol: i for i, symbol in enumerate(symbols)}
    merges: list[tuple[str, str]] = []
    for _ in range(generator.randrange(2, 16)):
        pair = generator.choice(list(vocabulary)), generator.choice(list(vocabulary))
        if len("".join(pair)) <= 4 and pair not in merges:
            merges.append(pair)
            vocabulary.setdefault("".join(pair), len(vocabulary))
    return vocabulary, merges


def _normalizer(generator: random.Random) -> Any:
    made = [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip(), normalizers.Replace("2", "1")]
    return generator.choice([None, None, None, *made[:3], normalizers.Sequence(made[:2]), made[3]])


def _bytes(generator: random.Random) -> Tokenizer:
    vocabulary, merges = _merges(generator, "abpin12-ĠPINA")
    options = {"ignore_merges": generator.random() < 0.3, "dropout": generator.choice([None, 0.0])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, **options))
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = generator.choice(
        [
            pre_tokenizers.ByteLevel(add_prefix_space=generator.random() < 0.4),
            plain,
            pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA_3), "isolated"), plain]),
            pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain]),
        ]
    )
    tokenizer.normalizer = _normalizer(generator)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _characters(generator: random.Random) -> Tokenizer:
    """As Llama 2's, with a normalizer or a pre-tokenizer for spaces; characters that are lacking become bytes."""
    vocabulary, merges = _merges(generator, generator.choice(["abpin12-▁PINA", "abpn12-▁", "abpin1-▁"]))
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True))
    if generator.random() < 0.4:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = _metaspace(generator)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _unigram(generator: random.Random) -> Tokenizer:
    tokens = {*"abpin12-▁", *(_word(generator).replace(" ", "▁") for _ in range(16))}
    step = generator.choice([1.0, 0.1])
    scores = [("<unk>", 0.0), *((token, -step * generator.randrange(1, 9)) for token in sorted(tokens))]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=0))
    tokenizer.pre_tokenizer = _metaspace(generator)
    tokenizer.normalizer = _normalizer(generator)
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _metaspace(generator: random.Random) -> Any:
    scheme = generator.choice(["always", "first", "never"])
    return pre_tokenizers.Metaspace(prepend_scheme=scheme, split=generator.random() < 0.5)


def _wordpiece(generator: random.Random) -> Tokenizer:
    letters = "abpin12-"
    tokens = {*letters, *("##" + letter for letter in letters)}
    for _ in range(12):
        word = _word(generator).replace(" ", "") or "a"
        tokens.add(word if generator.random() < 0.4 else "##" + word)
    vocabulary = {token: i for i, token in enumerate(["[UNK]", *sorted(tokens)])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    cuts = [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Whitespace(), pre_tokenizers.WhitespaceSplit()]
    tokenizer.pre_tokenizer = generator.choice(cuts)
    tokenizer.normalizer = generator.choice([None, normalizers.BertNormalizer(lowercase=True)])
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer
