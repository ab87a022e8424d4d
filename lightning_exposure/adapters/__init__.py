"""How a model reads a string, one token after the other: an adapter for every kind of model."""

from lightning_exposure.adapters.carried_state import RecurrentAdapter
from lightning_exposure.adapters.choosing import TriedModels, step_model
from lightning_exposure.adapters.encoder_decoder.adapter import Seq2SeqAdapter, TargetTokenizer
from lightning_exposure.adapters.encoder_decoder.translations import score_translations
from lightning_exposure.adapters.huggingface.adapter import HuggingFaceAdapter
from lightning_exposure.adapters.protocol import StepModel
from lightning_exposure.adapters.registry import ADAPTERS, AdapterKind
from lightning_exposure.adapters.stateless import StatelessAdapter

__all__ = [
    "ADAPTERS",
    "AdapterKind",
    "HuggingFaceAdapter",
    "RecurrentAdapter",
    "Seq2SeqAdapter",
    "StatelessAdapter",
    "StepModel",
    "TargetTokenizer",
    "TriedModels",
    "score_translations",
    "step_model",
]
