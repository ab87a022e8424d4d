"""What is wrong with a model, and what to do about it, in words."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor, nn

from lightning_exposure.adapters._differences import difference, typical
from lightning_exposure.errors import ModelError


class RefusedModelError(ModelError):
    """A model that was tried and is not what it seems."""


class Verdicts:
    """Refuses a module by name.

    Args:
        module: The module that was tried.
        eps: The relative rounding of what it computes.
    """

    def __init__(self, module: nn.Module, eps: float) -> None:
        self._module = module
        self._eps = eps

    def deterministic(self, once: Tensor, again: Tensor) -> None:
        """Refuse a model that gives other logits `(batch, time, vocabulary)` for the same texts."""
        far = difference(once, again) > 4.0 * self._eps * max(typical(once), 1e-30)
        differs = far.flatten(1).any(dim=1) | ((once != again).flatten(1).double().mean(dim=1) > 0.5)
        if int(differs.sum()) * 2 <= len(once):
            return
        dropout = self._always_on()
        self._refuse(
            "gives different logits when it reads the same text again, in eval mode. Is dropout always on"
            f"{dropout}, or does it keep something between calls (a hidden state, a cache)? A cost must be the same "
            "every time. Use nn.Dropout, or F.dropout(x, p, training=self.training), and let forward begin every text "
            "anew."
        )

    def not_probabilities(self, logits: Tensor) -> None:
        """Refuse numbers that are probabilities already: a softmax over them would make all strings nearly alike.

        So are percentages, and negative log-probabilities, whose order is reversed.
        """
        slack = max(1e-3, 4.0 * self._eps)
        if logits.shape[-1] < 2 or not bool((logits >= 0).all()):
            return
        remedy = "Return logits, the numbers before the softmax, or their log_softmax, which are normalised logits."
        sums = logits.sum(dim=-1)
        for total in (1, 100):
            if bool(((sums / total - 1.0).abs() <= slack).all()):
                self._refuse(f"returns probabilities: in every row they are not negative and sum to {total}. {remedy}")
        if bool((((-logits).exp().sum(dim=-1) - 1.0).abs() <= slack).all()):
            self._refuse(
                "returns negative log-probabilities: none is below 0, and exp(-x) sums to 1 in every row. Return their "
                "negative, which are normalised logits."
            )

    def refuse_mixed_rows(self, *, time_first: bool) -> NoReturn:
        """One row of a batch changes with another."""
        if time_first:
            self._refuse(
                "reads token ids as (time, batch): what it gives for one row of a batch (batch, time) changes with the "
                "rows before it. Transpose inside of forward, or say so: SecretTree(StatelessAdapter(module, "
                "time_first=True), format, tokenizer), or RecurrentAdapter(module, time_first=True) if it returns a "
                "state; in a callback: model=lambda module: StatelessAdapter(module, time_first=True)."
            )
        self._refuse(
            "gives other logits for a row of a batch when other rows are changed. Does it mix the rows (normalization "
            "over the batch, token ids taken as (time, batch), states in another order)? Every row must be read as if "
            "it were alone: look at the order of dimensions, and at layers that look at the whole batch."
        )

    def refuse_rows_by_place(self) -> NoReturn:
        """What a row gives depends on where in the batch it stands."""
        self._refuse(
            "gives other logits for a row when it stands at another place of the batch. Does it take the dimension of "
            "the batch for that of time, as an encoding of positions made for (time, batch) does? Every row must be "
            "read as if it were alone: look at the order of dimensions."
        )

    def refuse_seeing_the_future(self) -> NoReturn:
        """Logits change with tokens that come after them."""
        both_ways = [
            name for name, part in self._module.named_modules() if getattr(part, "bidirectional", False) is True
        ]
        hint = f" {', '.join(both_ways)} {'is' if len(both_ways) == 1 else 'are'} bidirectional." if both_ways else ""
        self._refuse(
            "is not causal: its logits change with tokens that come after them." + hint + " A language model that is "
            "to be measured predicts each token from those before it alone. Bidirectional networks and masked "
            "language models (BERT, XLNet) do not; a Transformer needs a causal mask (in Hugging Face models, for "
            "example, is_decoder=True)."
        )

    def refuse_shifted(self) -> NoReturn:
        """No token changes the logits at its own position."""
        self._refuse(
            "shifts its input: no token changes the logits at its own position, though it changes later ones. The "
            "logits at a position must be those of the token that follows, given all tokens up to this position, "
            "itself included. Do not shift inside of forward: shift the labels in the loss instead."
        )

    def refuse_parts(self, prompt: int, more: int) -> NoReturn:
        """A text read token by token is not what it is when it is read at once."""
        self._refuse(
            f"gives other logits when {prompt} + {more} tokens are read in parts, as far as the longest secret, than "
            "when they are read at once. Its state does not carry all that was read. Read everything again at each "
            "step: SecretTree(StatelessAdapter(module), format, tokenizer); in a callback: model=lambda module: "
            "StatelessAdapter(module). If this is a StepModel of your own, look at its start, step, select and "
            "concatenate."
        )

    def _refuse(self, what: str) -> NoReturn:
        raise RefusedModelError(f"model {type(self._module).__name__} {what}")

    def _always_on(self) -> str:
        """The names of dropout layers that stay on in eval mode."""
        names = [
            name
            for name, part in self._module.named_modules()
            if isinstance(part, torch.nn.modules.dropout._DropoutNd) and part.training
        ]
        return f" ({', '.join(names[:3])})" if names else ""
