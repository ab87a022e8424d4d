"""What a `tokenizer.json` says: its parts, its vocabulary, its added tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]
"""A `tokenizer.json`, or a part of it."""


def parts_of(component: Config | None) -> list[Config]:
    """The normalizers, pre-tokenizers or decoders of a sequence, flat.

    Example:
        >>> digits, spaces = {"type": "Digits"}, {"type": "Metaspace"}
        >>> parts_of({"type": "Sequence", "pretokenizers": [digits, spaces]}) == [digits, spaces]
        True
    """
    if component is None:
        return []
    if component.get("type") != "Sequence":
        return [component]
    inner: list[Config] = next(
        (component[key] for key in ("pretokenizers", "normalizers", "decoders") if key in component), []
    )
    return [part for nested in inner for part in parts_of(nested)]


def vocabulary_of(config: Config) -> Mapping[str, int]:
    """The tokens of the model and their ids, without those that were added to it."""
    vocabulary = config["model"]["vocab"]
    return vocabulary if isinstance(vocabulary, dict) else {token: i for i, (token, _) in enumerate(vocabulary)}


def added_tokens(config: Config) -> dict[int, Config]:
    """The added tokens, by their ids."""
    return {added["id"]: added for added in config.get("added_tokens", [])}


def unknown_of(config: Config) -> int | None:
    """The id of the token for what the vocabulary lacks."""
    model = config["model"]
    if model["type"] == "Unigram":
        found: int | None = model.get("unk_id")
        return found
    return vocabulary_of(config).get(model.get("unk_token") or "")
