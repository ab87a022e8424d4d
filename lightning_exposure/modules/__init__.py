"""Reference models: language models (LSTM, GRU, CNN, WaveNet, Transformer) and an encoder-decoder for translation."""

from lightning_exposure.modules._optimizers import OptimizerName, SchedulerName
from lightning_exposure.modules.convolutional import ConvolutionalNetwork
from lightning_exposure.modules.encoder_decoder import EncoderDecoder, EncoderDecoderNetwork
from lightning_exposure.modules.language_model import Architecture, LanguageModel
from lightning_exposure.modules.recurrent import RecurrentNetwork
from lightning_exposure.modules.transformer import Positions, TransformerNetwork
from lightning_exposure.modules.wavenet import WaveNet

__all__ = [
    "Architecture",
    "ConvolutionalNetwork",
    "EncoderDecoder",
    "EncoderDecoderNetwork",
    "LanguageModel",
    "OptimizerName",
    "Positions",
    "RecurrentNetwork",
    "SchedulerName",
    "TransformerNetwork",
    "WaveNet",
]
