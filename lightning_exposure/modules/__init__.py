"""Reference language models: LSTM, GRU, CNN, WaveNet and Transformer."""

from lightning_exposure.modules.convolutional import ConvolutionalNetwork
from lightning_exposure.modules.language_model import LanguageModel
from lightning_exposure.modules.recurrent import RecurrentNetwork
from lightning_exposure.modules.transformer import TransformerNetwork
from lightning_exposure.modules.wavenet import WaveNet

__all__ = ["ConvolutionalNetwork", "LanguageModel", "RecurrentNetwork", "TransformerNetwork", "WaveNet"]
