"""Training data with canaries in it: a wrapper for any data module, raw text, mail, and a ready corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_exposure._lazy import lazy_names
from lightning_exposure.data.datamodule import CanaryDataModule
from lightning_exposure.data.examples import inject_examples
from lightning_exposure.data.injection import inject
from lightning_exposure.data.ledger import Ledger
from lightning_exposure.data.mail import Corpus, Mail, read_mail

if TYPE_CHECKING:
    from lightning_exposure.data.text import TextDataModule

__all__ = ["CanaryDataModule", "Corpus", "Ledger", "Mail", "TextDataModule", "inject", "inject_examples", "read_mail"]

# With it, `lightning` is imported. A program that uses `pytorch_lightning` may never need that; then which of them is
# imported says which Trainer it has.
__getattr__ = lazy_names(__name__, {"TextDataModule": "text"})
