"""The errors this library raises: typed, so that callers can tell them apart.

Every message names the argument, what was given, what is expected and the remedy. All of them derive from
`ExposureError`, and from the built-in error a caller would expect (`ValueError` for bad values, `RuntimeError`
for things that went wrong while working).
"""

from __future__ import annotations


class ExposureError(Exception):
    """Base of every error this library raises on purpose."""


class ArgumentError(ExposureError, ValueError):
    """An argument is outside what a function accepts."""


class FormatError(ExposureError, ValueError):
    """A pattern and its word lists do not make a secret format."""


class SecretError(ExposureError, ValueError):
    """A text is not a secret of the format it should belong to."""


class ManifestError(ExposureError, ValueError):
    """A file of ours on disk is not what it should be."""


class MissingFileError(ManifestError, FileNotFoundError):
    """A file of ours that should be there is not, for callers that catch `FileNotFoundError`."""


class TokenizerError(ExposureError, ValueError):
    """A tokenizer cannot express a text, or a format cannot be walked with it."""


class ModelError(ExposureError, ValueError):
    """A model does not behave as a next-token model: shape, adapter, NaN."""


class ScoreError(ExposureError, ValueError):
    """Scores or references that no exposure can be computed from."""


class BudgetError(ExposureError, RuntimeError):
    """A budget ran out before an answer that must be exact was found."""


class FitError(ExposureError, RuntimeError):
    """Something could not be fitted, or not as it was asked for: a distribution to scores, or a model privately."""


class MixingError(ModelError, FitError):
    """Examples of a batch have a part in each other's gradients, so that clipping them one by one protects none."""


class DataError(ExposureError, ValueError):
    """Training data that canaries cannot be put into, or that cannot be read."""


class GateError(ExposureError, RuntimeError):
    """A gate is closed: a model is more exposed, or has spent more privacy, than is allowed."""


class NoCheckpointError(ExposureError, LookupError):
    """No checkpoint of a run is as it was asked for."""


class PseudonymError(DataError):
    """No pseudonym is left for a secret: more of them than there are numbers that are never issued."""
