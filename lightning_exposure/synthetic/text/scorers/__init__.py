"""How much a release speaks for each of some secrets: one file a scorer."""

from lightning_exposure.synthetic.text.scorers._neural import NeuralScorer
from lightning_exposure.synthetic.text.scorers._ngram import NgramScorer
from lightning_exposure.synthetic.text.scorers._registered import SCORERS, AskedSecret, ReleaseScorer

__all__ = ["SCORERS", "AskedSecret", "NeuralScorer", "NgramScorer", "ReleaseScorer"]
