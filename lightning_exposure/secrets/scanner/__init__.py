"""Finding the secrets that nobody planted: what of a text is at risk."""

from lightning_exposure.secrets.scanner.finding import Finding
from lightning_exposure.secrets.scanner.scanner import KINDS, Scanner

__all__ = ["KINDS", "Finding", "Scanner"]
