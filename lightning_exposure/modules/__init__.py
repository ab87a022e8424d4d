"""Reference models: language models (LSTM, GRU, CNN, WaveNet, Transformer) and an encoder-decoder for translation."""

from lightning_exposure.modules.convolutional import ConvolutionalNetwork
from lightning_exposure.modules.encoder_decoder import EncoderDecoder, EncoderDecoderNetwork
from lightning_exposure.modules.language_model import LanguageModel
from lightning_exposure.modules.recurrent import RecurrentNetwork
from lightning_exposure.modules.transformer import TransformerNetwork
from lightning_exposure.modules.wavenet import WaveNet

__all__ = [
    "ConvolutionalNetwork",
    "EncoderDecoder",
    "EncoderDecoderNetwork",
    "LanguageModel",
    "RecurrentNetwork",
    "TransformerNetwork",
    "WaveNet",
]
