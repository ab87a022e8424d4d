"""`extract`: pull secrets out of a model with one of the registered attacks."""

from __future__ import annotations

import time
from typing import Any

from lightning_exposure._checks import whole_number
from lightning_exposure.errors import ArgumentError
from lightning_exposure.extraction._attacks import ATTACKS, AttackName
from lightning_exposure.extraction._result import CERTAIN, Candidate, Extraction
from lightning_exposure.extraction._settings import check_settings
from lightning_exposure.tokenization.paths import tokens_of
from lightning_exposure.tree.prompt import reads_prompt_once
from lightning_exposure.tree.secret_tree import SecretTree, check_tree
from lightning_exposure.walks import DEFAULT_MEMORY, Progress


@reads_prompt_once
def extract(
    tree: SecretTree,
    algorithm: AttackName = "shortest_path",
    top_k: int = 1,
    *,
    known: str | None = None,
    starting_with: str | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
    **settings: Any,
) -> Extraction:
    """Attack a model: find the secrets of a format that are most likely under it.

    Ctrl-C ends an attack and returns what was found so far, marked as not optimal.

    Args:
        tree: The model, the format and the tokenizer.
        algorithm: One of the library's own, or the name of one that you registered with `ATTACKS`:

            - "shortest_path": cheapest first, with a proof. Settings: `budget` (expansions, default 1,000,000),
              `seconds`, `largest_batch`, `stop` ("proof", or "paper" for the rule of the paper).
            - "brute_force": every secret there is. Settings: `budget` (expansions, default none).
            - "beam": level by level, keeping the best. Settings: `width` (default 100).
            - "sampling": draw texts from the model. Settings: `samples` (walks, default 10,000), `temperature` (default
              1), `seed`, `target` (a secret: which walk reaches it first).
        top_k: How many candidates.
        known: The prompt and the first characters of the secret, if the attacker knows them.
        starting_with: The same, by the name that the trees have for it: give one of the two.
        memory: The limit for model states and open nodes, in bytes.
        progress: Called with expansions so far, open nodes, and the cost of the best secret so far.
        **settings: Settings of the algorithm.

    Raises:
        ArgumentError: An unknown algorithm, a setting it does not have, or a value out of range.
        SecretError: `known` or `target` does not fit the format.

    Example:
        >>> import torch
        >>> from lightning_exposure import SecretFormat
        >>> from lightning_exposure.tokenization import CharTokenizer
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Embedding(14, 8), torch.nn.Linear(8, 14))
        >>> tree = SecretTree(model, SecretFormat("pin ####"), CharTokenizer.from_text("pin 0123456789"))
        >>> found = extract(tree, top_k=3)
        >>> found.optimal, found.candidates == extract(tree, "brute_force", top_k=3).candidates
        (True, True)
    """
    check_tree(tree)
    whole_number("top_k", top_k, at_least=1)
    defaults = check_settings(algorithm, settings)
    if known is not None and starting_with is not None:
        raise ArgumentError("starting_with and known are given; expected one of the two. Leave the other out.")
    known = starting_with if known is None else known
    if known is not None:
        tree = tree.starting_with(known)
    start = time.perf_counter()
    result, first_seen = ATTACKS.get(algorithm)(tree, top_k, memory=memory, progress=progress, **settings)
    texts = [tree.text(tokens_of(path)) for path in result.paths]
    candidates = zip(texts, result.costs.tolist(), range(1, len(texts) + 1), strict=True)
    return Extraction(
        candidates=tuple(Candidate(*candidate) for candidate in candidates),
        optimal=result.ended_by == "proof",
        lower_bound=result.lower_bound,
        ended_by=result.ended_by,
        expansions=result.expansions,
        seconds=time.perf_counter() - start,
        algorithm=algorithm,
        settings={"top_k": top_k, "known": known, "memory": memory, **defaults, **settings},
        walks_until_target=first_seen,
        rests_on=(tree.rests_on or CERTAIN) if result.ended_by == "proof" else "",
        format=tree.format,
    )
