"""How a tokenizer spells texts of a format, with errors that name the format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightning_exposure._checks import instance
from lightning_exposure.errors import SecretError, TokenizerError
from lightning_exposure.secrets import Mask
from lightning_exposure.secrets.formats.misfits import misfit
from lightning_exposure.tokenization._vocabulary import Vocabulary
from lightning_exposure.tokenization.protocol import HasBatches, Tokenizer, capability

if TYPE_CHECKING:
    from lightning_exposure.secrets import SecretFormat


def check_beginning(format: SecretFormat, known: str) -> None:
    """Refuse a text that no secret begins with."""
    instance("known", known, str, "a string", "Give the prompt and the first characters of a secret.")
    if format.acceptor().walk(known) is None:
        raise SecretError(
            f"known does not fit, because no secret of {format.pattern!r} begins so: "
            f"{misfit(format.acceptor(), known)}. Give the prompt and the first characters of a secret."
        )


def encode(tokenizer: Tokenizer, text: str, format: SecretFormat, *, is_sample: bool = False) -> list[int]:
    """How a tokenizer spells a text; an error quotes it only if it is a sample of the format, and nobody's secret."""
    try:
        tokens = tokenizer.encode(text)
        return tokens if isinstance(tokens, list) else list(tokens)
    except TokenizerError as error:
        format.index(text)  # a text that is no secret at all gets that error
        needs = f"format {format.pattern!r} needs what the tokenizer cannot spell"
        if is_sample:
            raise TokenizerError(f"{needs}, for example {text!r}: {error}") from error
        raise TokenizerError(f"{needs}: {Mask.words(str(error), text)}") from None


def encode_all(tokenizer: Tokenizer, texts: Sequence[str], format: SecretFormat) -> list[list[int]]:
    """How a tokenizer spells some texts: all at once, if it can."""
    has_batches = capability(tokenizer, HasBatches)
    if has_batches is not None:
        try:
            return [tokens if isinstance(tokens, list) else list(tokens) for tokens in has_batches.encode_batch(texts)]
        except TokenizerError:
            pass  # one by one, for an error that names the text and the format
    return [encode(tokenizer, text, format) for text in texts]


def check_batches(
    tokenizer: Tokenizer, texts: Sequence[str], spelled: Sequence[list[int]], format: SecretFormat
) -> None:
    """Refuse a tokenizer that spells texts differently one by one and all at once."""
    for text, one, other in zip(texts, spelled, encode_all(tokenizer, texts, format), strict=True):
        if one != other:
            raise TokenizerError(
                f"encode_batch of {type(tokenizer).__name__} spells {text!r} as {other}, but encode as {one}; expected "
                "the same tokens. Make the two agree, or leave encode_batch out: encode is enough."
            )


def letters_of(vocabulary: Vocabulary) -> dict[str, int]:
    """The token of each character, if all tokens that can follow anywhere are single characters; otherwise nothing."""
    texts = vocabulary.texts
    letters = {text.decode("utf-8", errors="replace"): token for token, text in texts.items()}
    return letters if len(letters) == len(texts) and all(len(letter) == 1 for letter in letters) else {}
