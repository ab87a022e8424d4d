"""What to do about memorization: take secrets out of the data, or make the model forget them."""

from lightning_exposure.defences.compressed import compressed_size
from lightning_exposure.defences.quantization import Quantization, quantization_of, quantize
from lightning_exposure.defences.regularization import Regularization, set_dropout, set_weight_decay

__all__ = [
    "Quantization",
    "Regularization",
    "compressed_size",
    "quantization_of",
    "quantize",
    "set_dropout",
    "set_weight_decay",
]
