"""Mail as training data: what people wrote themselves, one corpus per sender."""

from lightning_exposure.data.mail.reading import Corpus, Mail, read_mail

__all__ = ["Corpus", "Mail", "read_mail"]
