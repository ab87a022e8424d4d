"""How a tokenizer spells the texts of a format: which tokens may follow at each place of a secret. No model here."""

from lightning_exposure.tokenization.characters import CharTokenizer
from lightning_exposure.tokenization.graphs.tokens import TokenAutomaton
from lightning_exposure.tokenization.huggingface.tokenizer import HuggingFaceTokenizer
from lightning_exposure.tokenization.protocol import (
    HasBatches,
    HasCuts,
    HasPieces,
    HasSpans,
    Span,
    Tokenizer,
    capability,
)
from lightning_exposure.tokenization.words import WordTokenizer

__all__ = [
    "CharTokenizer",
    "HasBatches",
    "HasCuts",
    "HasPieces",
    "HasSpans",
    "HuggingFaceTokenizer",
    "Span",
    "TokenAutomaton",
    "Tokenizer",
    "WordTokenizer",
    "capability",
]
