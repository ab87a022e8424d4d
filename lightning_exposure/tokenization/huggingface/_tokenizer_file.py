"""What the file of a fast tokenizer says, and a copy of the tokenizer that nothing else changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

from lightning_exposure.errors import TokenizerError
from lightning_exposure.tokenization.canonical.bpe import MergeTable
from lightning_exposure.tokenization.graphs.bytes import WORD_MARK
from lightning_exposure.tokenization.huggingface._added_tokens import AddedToken, added_in
from lightning_exposure.tokenization.huggingface._pieces import Writing, fallback_of, pieces_of, writing_of
from lightning_exposure.tokenization.huggingface._tokenizer_json import Config, unknown_of, vocabulary_of
from lightning_exposure.tokenization.protocol import Pieces

PROBE = "probe seven"
"""A short text to see what a tokenizer puts around texts."""


def content_of(backend: Any) -> str:
    """The `tokenizer.json` of a tokenizer."""
    try:
        content: str = backend.to_str()
    except Exception as error:
        raise TokenizerError(
            f"the tokenizer cannot be written to a file ({error}), so that nothing is known of how it spells texts. "
            "If parts of it are written in Python, wrap it in an object of your own with encode, decode and vocab_size."
        ) from error
    return content


class TokenizerFile:
    """What the file of a fast tokenizer says, and a copy of the tokenizer that nothing else changes.

    Args:
        load: Makes a tokenizer of the content of a file.
        content: A `tokenizer.json`.
        encode_special_tokens: Whether special tokens in a text are spelled as text.

    Attributes:
        config: What the file says.
        backend: The copy: no padding, no truncation, no special tokens.
        probe: How it spells a short text with its special tokens.

    Raises:
        TokenizerError: It spells the same text differently each time.
    """

    def __init__(self, load: Callable[[str], Any], content: str, encode_special_tokens: bool) -> None:
        self.config: Config = json.loads(content)
        if self.config["model"].get("dropout"):
            raise TokenizerError(
                f"the tokenizer leaves out merges at random (dropout={self.config['model']['dropout']}), so a text has "
                "no spelling of its own. Measure with a tokenizer without dropout."
            )
        # Padding and truncation are set on the tokenizer by whoever used it last; the post-processor changes offsets.
        self.backend = load(content)
        model = self.config["model"]
        if model["type"] == "Unigram":
            # Reading a file, tokenizers may round scores in the last digit, and that decides between equal spellings.
            scores = [(token, score) for token, score in model["vocab"]]
            self.backend.model = type(self.backend.model)(scores, model["unk_id"], model.get("byte_fallback", False))
        self.backend.no_padding()
        self.backend.no_truncation()
        self.probe: list[int] = self.backend.encode(PROBE).ids
        self.backend.post_processor = None
        self.backend.encode_special_tokens = encode_special_tokens

    @cached_property
    def writing(self) -> Writing | None:
        """How the vocabulary writes text; None if it is none of the known ways."""
        return writing_of(self.config)

    @cached_property
    def all_pieces(self) -> Pieces:
        """What each token adds to a text; where that is not known, something for every token that is not special."""
        return pieces_of(self.config, self.writing or Writing(str.encode, lambda character: [character]))

    @cached_property
    def added(self) -> list[AddedToken]:
        """The added tokens that are looked for in texts."""
        special_as_text = self.backend.encode_special_tokens
        found = added_in(self.config, self.backend.normalizer, encode_special_tokens=special_as_text)
        if self.writing is None:
            return found
        # Those that are in the vocabulary as well may be found by the model, where they are not looked for.
        numbers = {token.number for token in found} - {unknown_of(self.config)}
        twins = {n: self.writing.read(text) or b"" for text, n in vocabulary_of(self.config).items() if n in numbers}
        texts = {number: piece.lstrip(bytes([WORD_MARK])).decode(errors="replace") for number, piece in twins.items()}
        return found + [AddedToken(number, text, by_model=True) for number, text in texts.items() if text]

    @cached_property
    def strings(self) -> set[str]:
        """The strings of all tokens but the one that stands for all that is unknown."""
        unknown = unknown_of(self.config)
        return {string for string, number in vocabulary_of(self.config).items() if number != unknown}

    @cached_property
    def merges(self) -> MergeTable:
        """The merges of a BPE model."""
        return MergeTable(self.config["model"], fallback_of(self.config))

    def cuts(self, texts: Sequence[str], /) -> list[set[int]] | None:
        """For each text, the positions before which a pre-token begins or behind which one ends.

        None if characters of a text are in no token, so that cuts beside them would not be seen.
        """
        found = []
        for text, encoding in zip(texts, self.backend.encode_batch(list(texts), add_special_tokens=False), strict=True):
            words, covers = encoding.word_ids, encoding.offsets
            covered = {position for start, end in covers for position in range(start, end)}
            if any(position not in covered and not character.isspace() for position, character in enumerate(text)):
                return None
            cuts = {covers[i][1] for i in range(len(words) - 1) if words[i] != words[i + 1]}
            if self.writing is None or self.writing.marked:  # else a space that no token covers is in the next one
                cuts |= {covers[i][0] for i in range(1, len(words)) if words[i] != words[i - 1]}
            found.append(cuts)
        return found


@lru_cache(maxsize=4)
def read_file(load: Callable[[str], Any], content: str, encode_special_tokens: bool) -> TokenizerFile:
    """The same file is read once, however many trees are made with it."""
    return TokenizerFile(load, content, encode_special_tokens)
