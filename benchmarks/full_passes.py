"""The costs of secrets without a tree: each is read from its first character to its last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from benchmarks.models import Subject
from lightning_exposure import SecretFormat

_BITS_PER_NAT = float(1.0 / np.log(2.0))


def full_pass_costs(
    subject: Subject, format_: SecretFormat, secrets: Sequence[str], batch_size: int = 4096
) -> NDArray[np.float64]:
    """The log-perplexity of each secret, in bits, from full forward passes in batches.

    As good as it gets without sharing: only what is needed is normalized, and no gradients are kept.
    """
    prompt = len(subject.tokenizer.encode(format_.prompt))
    costs = []
    with torch.no_grad():
        for start in range(0, len(secrets), batch_size):
            texts = secrets[start : start + batch_size]
            tokens = torch.tensor([subject.tokenizer.encode(text) for text in texts])
            logits, _ = subject.model(tokens[:, :-1])
            log_probabilities = functional.log_softmax(logits[:, prompt - 1 :], dim=-1)
            chosen = log_probabilities.gather(2, tokens[:, prompt:, None])[:, :, 0]
            costs.append(-chosen.double().sum(dim=1).numpy() * _BITS_PER_NAT)
    return np.concatenate(costs)
