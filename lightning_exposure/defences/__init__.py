"""What to do about memorization: take secrets out of the data, or make the model forget them."""

from lightning_exposure.defences.compressed import compressed_size
from lightning_exposure.defences.quantization import Quantization, quantization_of, quantize

__all__ = ["Quantization", "compressed_size", "quantization_of", "quantize"]
