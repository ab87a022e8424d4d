"""Putting canaries among the examples of a list or of a `datasets.Dataset`, once, before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

from lightning_exposure._checks import refusal
from lightning_exposure.data._example_structure import check_example
from lightning_exposure.data.injection import check_canaries
from lightning_exposure.data.randomness import seeded
from lightning_exposure.errors import ArgumentError, DataError
from lightning_exposure.secrets import CanarySet
from lightning_exposure.secrets.formats.drawing import Seed, generator_from

Examples = TypeVar("Examples")


def inject_examples(
    examples: Examples, canaries: CanarySet, encode: Callable[[str], Any] | None = None, *, seed: Seed = 0
) -> Examples:
    """Insert each canary as an example of its own, as often as its `repetitions` say; those held out never.

    The places are drawn uniformly; the other examples keep their order. What is given is not changed.

    Args:
        examples: A list, a tuple or a `datasets.Dataset`.
        canaries: What to insert.
        encode: Makes of a text an example with the structure of the others; called once for each canary. None: the
            examples are texts, or have one column, and that holds texts.
        seed: Where the places come from: an integer, a `random.Random` or a `numpy.random.Generator`.

    Returns:
        The same kind of container, with as many examples more as there are copies.

    Raises:
        DataError: What `encode` returns is not like the other examples.
        ArgumentError: `examples` is another kind of data; the message says what to do with it.

    Example:
        >>> from lightning_exposure.secrets import Canary, SecretFormat
        >>> pin = Canary("pin", "pin 4711", SecretFormat("pin ####"), repetitions=2)
        >>> inject_examples(["the", "quick", "brown", "fox"], CanarySet([pin]), seed=0)
        ['pin 4711', 'the', 'quick', 'pin 4711', 'brown', 'fox']
    """
    check_canaries(canaries)
    if encode is not None and not callable(encode):
        raise refusal("encode", encode, "a function that makes an example of a text, or None")
    container: Any = examples
    is_stored = _is_dataset(container, "Dataset")
    if not is_stored and not isinstance(container, list | tuple):
        raise _other_kind(container)
    encode = encode or _encoder(container, is_stored)
    generator = generator_from(seed)
    with seeded(seed if isinstance(seed, int) else 0):
        encoded = {canary.id: encode(canary.text) for canary in canaries if canary.copies}
    if len(container):
        for id_, example in encoded.items():
            _check(id_, example, container[0], is_stored)
    copies = [encoded[canary.id] for canary in canaries for _ in range(canary.copies)]
    # Shuffled, so that all orders of the copies are equally likely.
    generator.shuffle(copies)
    places = set(generator.sample(range(len(container) + len(copies)), len(copies)))
    found = _woven_dataset(container, copies, places) if is_stored else _woven(container, copies, places)
    return found  # type: ignore[no-any-return]


def _woven(examples: Sequence[Any], copies: Sequence[Any], places: set[int]) -> Any:
    ours, theirs = iter(copies), iter(examples)
    total = len(examples) + len(copies)
    made = [next(ours) if place in places else next(theirs) for place in range(total)]
    # A named tuple is an example and no container, but a subclass of list may be one.
    return made if isinstance(examples, list) else tuple(made)


def _woven_dataset(dataset: Any, copies: Sequence[Mapping[str, Any]], places: set[int]) -> Any:
    """Behind the others first, and then one list of row numbers: the data themselves are not copied."""
    if not copies:
        return dataset
    package = import_module("datasets")
    columns = {name: [copy[name] for copy in copies] for name in dataset.column_names}
    more = package.Dataset.from_dict(columns, features=dataset.features)
    joined = package.concatenate_datasets([dataset.with_format(None), more])
    ours, theirs = iter(range(len(dataset), len(joined))), iter(range(len(dataset)))
    order = [next(ours) if place in places else next(theirs) for place in range(len(joined))]
    return joined.select(order).with_format(**dataset.format) if dataset.format["type"] else joined.select(order)


def _encoder(examples: Any, is_stored: bool) -> Callable[[str], Any]:
    """For examples that are nothing but texts."""
    if is_stored:
        names, types = examples.column_names, examples.features
        if len(names) == 1 and getattr(types[names[0]], "dtype", None) in ("string", "large_string"):
            return lambda text: {names[0]: text}
    elif not examples or isinstance(examples[0], str):
        return lambda text: text
    elif isinstance(examples[0], Mapping) and [type(value) for value in examples[0].values()] == [str]:
        (name,) = examples[0]
        return lambda text: {name: text}
    raise ArgumentError(
        "encode is None; expected a function that makes an example of a text, because the examples are not texts. For "
        "example lambda text: {'text': text}, or lambda text: tokenizer(text)."
    )


def _check(id_: str, example: Any, first: Any, is_stored: bool) -> None:
    if not is_stored:
        check_example(id_, example, first, same_shape=False)
        return
    if not isinstance(example, Mapping) or set(example) != set(first):
        given = sorted(map(str, example)) if isinstance(example, Mapping) else type(example).__name__
        raise DataError(
            f"encode returned {given} for canary {id_!r}; expected a dict with the columns of the dataset, "
            f"{sorted(first)}. Make encode(text) return an example of the dataset's structure."
        )


def _is_dataset(value: Any, name: str) -> bool:
    """Whether it is of a class of `datasets`; the package is not imported for the question."""
    return any(
        base.__module__.partition(".")[0] == "datasets" and base.__name__ == name for base in type(value).__mro__
    )


def _other_kind(value: Any) -> ArgumentError:
    remedy = "For a data loader or a LightningDataModule, use CanaryDataModule; for a running text, inject."
    if _is_dataset(value, "DatasetDict"):
        remedy = 'Insert into the part that is trained on: data["train"] = inject_examples(data["train"], ...).'
    elif _is_dataset(value, "IterableDataset"):
        remedy = "A stream has no places: keep it as a datasets.Dataset, or wrap its loader in a CanaryDataModule."
    return ArgumentError(
        f"examples is of type {type(value).__name__}; expected a list, a tuple or a datasets.Dataset. {remedy}"
    )
