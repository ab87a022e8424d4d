"""`sanitize`: which samples a model learns by heart, by the difference between having seen them and not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lightning_exposure._checks import choice, flag, number, refusal, whole_number
from lightning_exposure.adapters.protocol import StepModel
from lightning_exposure.defences.sanitizing._grouping import group_copies
from lightning_exposure.defences.sanitizing._samples import Samples, Unit, samples_of
from lightning_exposure.defences.sanitizing._splitting import losses_by_part, split_groups
from lightning_exposure.defences.sanitizing.sanitization import Per, Sanitization
from lightning_exposure.defences.sanitizing.scoring import TextScorer
from lightning_exposure.defences.sanitizing.training import ReferenceTraining
from lightning_exposure.errors import DataError, ModelError

Score = Callable[[Sequence[Any]], Any]
"""What samples cost, in bits: one number each."""

Train = Callable[[Sequence[Any]], Any]
"""Trains on samples: returns a module, a module with its tokenizer, or a `Score`."""

_SMALLEST_CAP = 16


def sanitize(
    dataset_or_texts: Any,
    train: Train | None = None,
    *,
    tokenizer: Any = None,
    folds: int = 2,
    share: float = 0.1,
    per: Per = "symbol",
    group: bool = True,
    n: int = 8,
    largest_group: int | None = None,
    unit: Unit = "line",
    text_of: Callable[[Any], str] | None = None,
    seed: int = 0,
    on_stage: Callable[[str], None] | None = None,
) -> Sanitization:
    r"""Find the samples that a model learns by heart, to train again without them.

    The samples are divided at random into parts. For each part a model is trained on the other parts, and every sample
    is scored with every model. What costs much more where it was held out than where it was seen was not learnt from
    the language but from itself: the samples with the largest difference come first ("The Secret Sharer", Appendix F;
    there without a sign).

    Copies of a sample, exact and near, fall into one part, so that a secret which occurs several times is held out as a
    whole: equal samples, and those that share a rare n-gram, a number above all.

    Args:
        dataset_or_texts: The path of a UTF-8 text, a text (with a line break in it), a list of texts, or a dataset with
            a length, of texts, rows of token ids, or pairs of inputs and targets.
        train: Called with a list of samples, must train a new model on them, and return it: any module with logits
            (then give the `tokenizer`, too), a pair of a module and its tokenizer, or a function that takes samples
            and returns what each costs, in bits. It should begin with the same weights every time. None: our reference
            `LanguageModel`, as in `ReferenceTraining()`.
        tokenizer: How the modules that `train` returns read texts; not needed for token ids.
        folds: How many parts there are. With 2, as in the paper, two models see half of the data each. With more, each
            sees more of it, and what a sample costs where it was seen is the mean over several models.
        share: Which share of the samples to remove.
        per: "symbol": differences are compared in bits per character (or per token id), which finds secrets sooner
            than "sample": bits of a whole sample, which favour the long ones.
        group: Whether to keep copies together.
        n: How many digits in a row two samples must share to be taken for copies; of other symbols, twice as many. Of
            token ids, `n`.
        largest_group: How many samples a group of copies may have, and a rare n-gram; None: one in a hundred, and at
            least 16.
        unit: Whether samples of a text are its lines or its paragraphs.
        text_of: Gives the text of an item, such as `lambda row: row["text"]`; the samples are then these texts.
        seed: Of the division into parts.
        on_stage: Called with what is being done.

    Raises:
        ArgumentError: An argument is out of range; it is named.
        DataError: There are too few samples, or samples of another kind.
        ModelError: `train` returned something that cannot score, or costs that are not finite.

    Example:
        >>> def train(samples):  # a "model" that knows by heart what it has seen
        ...     return lambda texts: [0.0 if text in samples else 8.0 * len(text) for text in texts]
        >>> result = sanitize(["pin 1234", "hello", "hello", "bye"], train, share=0.25)
        >>> result.differences.tolist(), result.groups.tolist()
        ([8.0, 8.0, 8.0, 8.0], [0, 1, 1, 2])
    """
    folds = whole_number("folds", folds, at_least=2)
    number("share", share, at_least=0, at_most=1)
    choice("per", per, get_args(Per))
    whole_number("seed", seed, at_least=0)
    samples = samples_of(dataset_or_texts, unit, text_of, tokenizer)
    if len(samples) < 2 * folds:
        raise DataError(
            f"dataset_or_texts has {len(samples)} samples; expected at least {2 * folds}, two for each of "
            f"folds={folds}. Give more, or choose fewer folds."
        )
    largest = _largest(largest_group, len(samples), folds)
    train = _trainer(train, samples)
    tell = on_stage or (lambda stage: None)
    tell("looking for copies")
    groups = np.arange(len(samples))
    if flag("group", group):
        digits = samples.are_texts or tokenizer is not None
        n = whole_number("n", n, at_least=1)
        groups = group_copies(samples.symbols, n=n, largest=largest, digits=digits)
    parts = split_groups(groups, folds, seed)
    costs = np.empty((folds, len(samples)))
    for part in range(folds):
        tell(f"training model {part + 1} of {folds}")
        seen = [item for item, of in zip(samples.items, parts.tolist(), strict=True) if of != part]
        score = _scorer(train(seen), tokenizer, samples)
        tell(f"scoring with model {part + 1} of {folds}")
        costs[part] = _scored(score, samples)
    settings = {"folds": folds, "group": group, "n": n, "largest_group": largest, "seed": seed}
    return Sanitization(samples, losses_by_part(costs, parts), groups, parts, float(share), per, settings)


def _largest(given: int | None, count: int, folds: int) -> int:
    """The limit on the size of a group: no part may be smaller than the largest group."""
    most = count // folds
    if given is None:
        return min(max(_SMALLEST_CAP, count // 100), most)
    whole = whole_number("largest_group", given, at_least=1)
    if whole > most:
        raise refusal("largest_group", given, f"at most {most}, the size of a part", "Choose a smaller one.")
    return whole


def _trainer(train: Train | None, samples: Samples) -> Train:
    if train is not None and not callable(train):
        raise refusal("train", train, "a function that takes samples and returns a trained model", with_type=True)
    if not samples.are_texts and (train is None or isinstance(train, ReferenceTraining)):
        raise refusal("train", train, "a function of yours, because the samples are no texts", "Or say text_of=...")
    if train is None or isinstance(train, ReferenceTraining):
        return (train or ReferenceTraining()).on(cast("Sequence[str]", samples.items))
    if isinstance(train, nn.Module):
        raise refusal("train", train, "a function that trains a new module on the samples it is given")
    return train


def _scorer(trained: Any, tokenizer: Any, samples: Samples) -> Score:
    """What `train` returned, as a function that scores."""
    if isinstance(trained, tuple) and len(trained) == 2:
        trained, tokenizer = trained
    if isinstance(trained, nn.Module | StepModel):
        if samples.are_texts and tokenizer is None:
            raise refusal("tokenizer", None, "the tokenizer of the modules that train returns", "Or return both.")
        return TextScorer(trained, tokenizer if samples.are_texts else None)
    if callable(trained):
        return cast(Score, trained)
    raise ModelError(
        f"train returned {type(trained).__name__}; expected a module, a module and its tokenizer, or a function that "
        "takes samples and returns what each costs in bits. Return the trained model."
    )


def _scored(score: Score, samples: Samples) -> NDArray[np.float64]:
    given = score(samples.items)
    costs = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given, dtype=np.float64)
    if costs.shape != (len(samples),) or not np.isfinite(costs).all():
        raise ModelError(
            f"the model that train returned gave costs of shape {costs.shape}, {int((~np.isfinite(costs)).sum())} of "
            f"them not finite; expected {len(samples)} finite numbers, one for each sample. Look at the training."
        )
    return costs
