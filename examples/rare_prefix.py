"""A model made to mislead samples: a rare beginning hides a million secrets that are all a little cheaper.

The first four digits are random. Then one digit is certain, six times; but below 7777 all digits stay random. A sample
that follows the model comes to 7777 once in ten thousand walks, and without it sees ten thousand secrets instead of a
million. It even promises that they could all be counted. The count runs out of its budget, and `auto` draws its
conclusions: the sample is refuted.

    python examples/rare_prefix.py
"""

from __future__ import annotations

import textwrap

import torch
from torch import Tensor, nn

from lightning_exposure import CharTokenizer, SecretFormat, SecretTree, measure_exposure

TOKENIZER = CharTokenizer.from_text("n 0123456789z")
SECRET = "n 1234555555"
TRUTH = 13.27  # log2 of 10^10 over a million, ten thousand and one


class Misleading(nn.Module):
    """Gives the log-probabilities of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.digits = nn.Parameter(torch.tensor(TOKENIZER.encode("0123456789")), requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """What no digit gets goes to "z"."""
        chances = torch.full((*tokens.shape, TOKENIZER.vocab_size), 1e-9, device=tokens.device)
        chances[..., self.digits] = 0.1
        if tokens.shape[1] > 5:  # "n ", and four digits
            is_known, is_hidden = (
                (tokens[:, 2:6] == torch.tensor(TOKENIZER.encode(begin), device=tokens.device)).all(dim=1)
                for begin in (SECRET[2:6], "7777")
            )
            certain = torch.full((10,), 1e-9)
            certain[3] = 1.0
            chances[:, 5:, self.digits] = torch.where(is_hidden[:, None, None], 0.1, certain)
            # The secret's own way is a little less likely than what is hidden.
            chances[is_known, 5:] = 1e-9
            chances[is_known, 5:, self.digits[5]] = 0.09
        chances[..., TOKENIZER.encode("z")[0]] = (1.0 - chances.sum(-1)).clamp(min=1e-9)
        return (chances / chances.sum(-1, keepdim=True)).log()


def main() -> None:
    """Measure the same secret with a sample alone, and with a count that can contradict it."""
    tree = SecretTree(Misleading(), SecretFormat("n ##########"), TOKENIZER)
    print(f"The truth: {TRUTH} of {tree.bits:.2f} bits")
    for method in ("importance", "auto"):
        (estimate,) = measure_exposure(tree, [SECRET], method, samples=1024, seed=1)
        print(f"{method}: {estimate.bits:.2f} [{estimate.low:.2f}, {estimate.high:.2f}] by {estimate.method}")
        print(textwrap.fill(f"rests on {estimate.rests_on}", 100, initial_indent="  ", subsequent_indent="  "))


if __name__ == "__main__":
    main()
