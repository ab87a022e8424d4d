"""How a tokenizer spells the texts of a format: which tokens may follow at each place of a secret. No model here."""

from lightning_exposure.tokenization.graphs.tokens import TokenAutomaton
from lightning_exposure.tokenization.huggingface.tokenizer import HuggingFaceTokenizer
from lightning_exposure.tokenization.tokenizers import CharTokenizer, Tokenizer, WordTokenizer

__all__ = ["CharTokenizer", "HuggingFaceTokenizer", "TokenAutomaton", "Tokenizer", "WordTokenizer"]
