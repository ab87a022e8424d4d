"""Trying a model before anything is measured with it: is it the causal language model that it seems to be?

A model may take token ids, return numbers of the right shape, and still be something else: bidirectional, shifted by a
token, with time and batch in the other order, with dropout that is always on, with probabilities for logits. Its
exposures would be wrong without a word. So some texts of the format itself are read, changed and read again.

What counts as a change follows from the model's own noise: the same rows are read in batches of two shapes, and only
what differs by more than that is a difference.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from lightning_exposure.adapters.protocol import StepModel
from lightning_exposure.adapters.trial._passes import Passes
from lightning_exposure.adapters.trial._refusals import RefusedModelError
from lightning_exposure.adapters.trial._steps import Steps
from lightning_exposure.adapters.trial._texts import Probe
from lightning_exposure.adapters.trial._traceless import without_trace
from lightning_exposure.errors import ModelError


def try_on(model: StepModel, probe: Probe) -> ModelError | None:
    """Try a model on the secrets of a format, when a tree is made.

    Args:
        model: What reads.
        probe: Some texts of the format.

    Raises:
        RefusedModelError: The model is not what it seems.

    Returns:
        What went wrong when it read texts as long as the longest secret; None if nothing did.
    """
    try:
        try:
            try_model(model, probe)
        except RefusedModelError:
            raise
        except Exception:
            if probe.known == probe.paths.shape[1]:
                raise
            try_model(model, probe.shortened())  # no secret may be that long
    except RefusedModelError:
        raise
    except ModelError as error:
        return error
    except Exception as error:  # whatever a model of unknown making does
        length = len(probe.root) + probe.known
        return ModelError(
            f"model {type(model.module).__name__} failed on secrets of {length} tokens, which the longest ones have "
            f"(their last one is not read): {error!r}. If that is too long for it, shorten the text before the first "
            "blank, or say with context=... how many of the last tokens it is to be given."
        )
    return None


def try_model(model: StepModel, probe: Probe) -> None:
    """Raise if a model is not what it seems; it is left exactly as it was.

    Raises:
        RefusedModelError: It is not; names what is wrong, and the remedy.
    """
    with without_trace(model.module):
        try_out = getattr(model, "try_out", None)
        proven = bool(try_out(probe.root, probe.paths.tolist())) if try_out is not None else False
        read: Callable[[Tensor], Tensor] | None = getattr(model, "at_once", None)
        if read is not None and not proven:
            Passes(model, probe, read).judge()
        if getattr(model, "rereads", False) is not True:  # else a step is a pass, and nothing is left to be seen
            Steps(model, probe, proven=try_out is not None).judge()
