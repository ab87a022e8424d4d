"""Training data with canaries in it: a wrapper for any data module, raw text, mail, and a ready corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_exposure.data.datamodule import CanaryDataModule
from lightning_exposure.data.injection import inject
from lightning_exposure.data.ledger import Ledger
from lightning_exposure.data.mail import Corpus, Mail, read_mail

if TYPE_CHECKING:
    from lightning_exposure.data.text import TextDataModule

__all__ = ["CanaryDataModule", "Corpus", "Ledger", "Mail", "TextDataModule", "inject", "read_mail"]


def __getattr__(name: str) -> Any:
    """Import `TextDataModule`, and with it `lightning`, when someone asks for it.

    A program that uses `pytorch_lightning` may never need `lightning`; then which of them is imported says which
    Trainer it has.
    """
    if name != "TextDataModule":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lightning_exposure.data.text import TextDataModule

    globals()[name] = TextDataModule
    return TextDataModule
