"""Trying a model before anything is measured with it: is it the causal language model that it seems to be?"""

from lightning_exposure.adapters.trial._texts import Probe, probe_of
from lightning_exposure.adapters.trial._trial import try_on

__all__ = ["Probe", "probe_of", "try_on"]
