"""Losses in which every example has a part of its own, as private training needs them."""

from __future__ import annotations

from typing import Final, Literal, get_args

from torch import Tensor
from torch.nn import functional

from lightning_exposure._checks import choice
from lightning_exposure.errors import ArgumentError

LossReduction = Literal["mean", "sum"]
REDUCTIONS: Final = get_args(LossReduction)
"""What the loss of a private training run may be of the losses of its examples."""


def per_example_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    shift: bool = True,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Tensor:
    """The cross-entropy of a language model, averaged over the tokens of each example, and then over the examples.

    The `.loss` of Hugging Face models and `cross_entropy(..., ignore_index=-100)` divide by the number of tokens in the
    whole batch. So the weight of every example depends on the lengths of the others, and privacy, which is about
    single examples, is lost: `DifferentialPrivacy` refuses it. Here no example has a part in another one's loss.

    Args:
        logits: `(batch, time, vocabulary)`, or `(batch, vocabulary)` for one label for each example.
        labels: `(batch, time)`, or `(batch,)`; `ignore_index` where there is nothing to predict. An example with
            nothing to predict at all has a loss of 0.
        shift: Whether the logits at each step are for the label of the next one, as with the labels of causal language
            models. False if the labels are in their places: masked language models, encoder-decoder models.
        ignore_index: The label of what does not count.
        reduction: "mean" or "sum" over the examples, as `loss_reduction` of `DifferentialPrivacy` says; "none" for the
            losses of the examples themselves, `(batch,)`.

    Raises:
        ArgumentError: Logits and labels do not fit each other, or the reduction is none.

    Example:
        >>> import torch
        >>> logits = torch.zeros(2, 4, 8)
        >>> labels = torch.tensor([[1, 2, 3, 4], [5, 6, -100, -100]])
        >>> per_example_loss(logits, labels, reduction="none")
        tensor([2.0794, 2.0794])

        In a module: `return per_example_loss(self.model(input_ids=ids, attention_mask=mask).logits, labels)`.
    """
    choice("reduction", reduction, (*REDUCTIONS, "none"))
    if logits.shape[:-1] != labels.shape or labels.dim() not in (1, 2):
        raise ArgumentError(
            f"logits has the shape {tuple(logits.shape)} and labels {tuple(labels.shape)}; expected (batch, time, "
            "vocabulary) and (batch, time), or (batch, vocabulary) and (batch,)."
        )
    if labels.dim() == 1:
        logits, labels = logits[:, None], labels[:, None]
    elif shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
    # As transformers does: the softmax of half precision would be off.
    raised = logits.float() if logits.element_size() < 4 else logits
    each = functional.cross_entropy(raised.transpose(1, 2), labels, ignore_index=ignore_index, reduction="none")
    counted = (labels != ignore_index).sum(1).clamp(min=1)
    losses = each.sum(1) / counted
    if reduction == "none":
        return losses
    # No example at all is no loss at all, and not a number divided by nothing.
    return losses.sum() / max(1, len(losses)) if reduction == "mean" else losses.sum()
