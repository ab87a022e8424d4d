"""How a model reads a string, token by token: tokenizers, adapters, and the tree of all secrets of a format."""

from lightning_exposure.language.adapters import step_model
from lightning_exposure.language.automaton import TokenAutomaton
from lightning_exposure.language.huggingface import HuggingFaceAdapter
from lightning_exposure.language.models import StepModel
from lightning_exposure.language.pairs import score_pairs
from lightning_exposure.language.recurrent import RecurrentAdapter
from lightning_exposure.language.seq2seq import Seq2SeqAdapter, TargetTokenizer
from lightning_exposure.language.stateless import StatelessAdapter
from lightning_exposure.language.subwords import HuggingFaceTokenizer
from lightning_exposure.language.tokenizers import CharTokenizer, Tokenizer, WordTokenizer
from lightning_exposure.language.tree import Children, Nodes, SecretTree

__all__ = [
    "CharTokenizer",
    "Children",
    "HuggingFaceAdapter",
    "HuggingFaceTokenizer",
    "Nodes",
    "RecurrentAdapter",
    "SecretTree",
    "Seq2SeqAdapter",
    "StatelessAdapter",
    "StepModel",
    "TargetTokenizer",
    "TokenAutomaton",
    "Tokenizer",
    "WordTokenizer",
    "score_pairs",
    "step_model",
]
