"""What a decoder that is constrained to a format gives away of a secret."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_exposure.leakage.decoder import Decoder
from lightning_exposure.tree.path_reader import Reading
from lightning_exposure.tree.secret_tree import SecretTree
from lightning_exposure.walks.batches import rows_within


def shares(tree: SecretTree, secrets: Sequence[str], decoder: Decoder, *, memory: int) -> NDArray[np.float64]:
    """The product of the probabilities of each secret's tokens, each renormalised among those that the format allows.

    Over all secrets of the format they add up to 1, or to less if the tokenizer's rules are not known, so that some
    tokens lead to spellings that it does not use. Where a secret can end and another goes on, ending gets the
    probability of all tokens that do not go on.

    Args:
        tree: The model and the format.
        secrets: Secrets of the format.
        decoder: What draws among the tokens that are allowed.
        memory: The limit for model states, in bytes.
    """
    paths = tree.paths(secrets)
    largest = rows_within(tree, memory, blocks=3)
    parts = [_of_paths(tree, paths[first : first + largest], decoder) for first in range(0, len(paths), largest)]
    return np.concatenate(parts) if parts else np.empty(0)


def _of_paths(tree: SecretTree, paths: NDArray[np.int32], decoder: Decoder) -> NDArray[np.float64]:
    """The same for as many as are read at once."""
    found = np.ones(len(paths))
    places = np.full(len(paths), tree.automaton.start, dtype=np.int64)
    with tree.reader() as reader:
        reading = reader.start()
        state = reader.select(reading.state, np.zeros(len(paths), dtype=np.int64))
        reading = Reading(state, reading.logits.expand(len(paths), -1))
        for level in range(paths.shape[1] + 1):
            tokens = paths[:, level] if level < paths.shape[1] else np.full(len(paths), -1, dtype=np.int32)
            for row in np.flatnonzero(places >= 0).tolist():
                chance, places[row] = _step(tree, reading, row, int(places[row]), int(tokens[row]), decoder)
                found[row] *= chance
            if not (places >= 0).any() or level == paths.shape[1]:
                break
            # A row that has ended reads on, whatever it may be: nobody looks at it any more.
            reading = reader.step(reading.state, np.maximum(tokens, 0).astype(np.int64))
    return found


def _step(tree: SecretTree, reading: Reading, row: int, place: int, token: int, decoder: Decoder) -> tuple[float, int]:
    """What the next token of a secret, or its end (-1), has of what is allowed; and the place behind it."""
    tokens, targets = tree.automaton.children(place)
    logits = reading.logits[row : row + 1]
    if tree.automaton.accepting(place):
        chances = decoder.probabilities(logits)[0, tokens]
    elif not len(tokens):
        return 1.0, -1
    else:  # constrained first, then drawn: in the order of `generate`
        chances = decoder.probabilities(logits[:, torch.from_numpy(tokens).to(logits.device)])[0]
    if token < 0:
        return max(0.0, 1.0 - float(chances.sum())), -1
    at = int(np.searchsorted(tokens, token))
    return float(chances[at]), int(targets[at])
