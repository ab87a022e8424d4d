"""`inject_examples`: canaries among the examples of lists and of a `datasets.Dataset`."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from lightning_exposure import CanarySet, SecretFormat
from lightning_exposure.data import inject_examples
from lightning_exposure.errors import ArgumentError, DataError

PIN = SecretFormat("pin ####")
CANARIES = CanarySet.draw(PIN, repetitions=[0, 1, 5], seed=0)
COINS = CanarySet.draw(PIN, repetitions=[2] * 8, seed=0, holdout=0.5)
TEXTS = [f"line {number}" for number in range(40)]


@pytest.mark.parametrize("canaries", [CANARIES, COINS])
@pytest.mark.parametrize("kind", [list, tuple])
def test_each_canary_is_there_as_often_as_it_says_and_the_others_keep_their_order(
    canaries: CanarySet, kind: type
) -> None:
    given = kind(TEXTS)
    made = inject_examples(given, canaries, seed=3)
    assert type(made) is kind
    assert {canary.text: Counter(made)[canary.text] for canary in canaries} == {c.text: c.copies for c in canaries}
    assert [text for text in made if text not in canaries.texts] == TEXTS
    assert given == kind(TEXTS)


def test_the_places_depend_on_the_seed_and_on_nothing_else() -> None:
    random.seed(1)
    one = inject_examples(TEXTS, CANARIES, seed=3)
    random.seed(2)
    state = random.getstate()
    assert inject_examples(TEXTS, CANARIES, seed=3) == one
    assert random.getstate() == state
    assert inject_examples(TEXTS, CANARIES, seed=4) != one
    assert inject_examples(TEXTS, CANARIES, seed=np.random.default_rng(0)) != one


def test_every_place_is_equally_likely() -> None:
    one = CanarySet.draw(PIN, repetitions=[1], seed=0)
    places = Counter(inject_examples(["a", "b", "c"], one, seed=seed).index(one[0].text) for seed in range(400))
    assert set(places) == {0, 1, 2, 3}
    assert min(places.values()) > 70


def test_encode_makes_examples_of_any_structure() -> None:
    data = [{"ids": torch.tensor([1, 2]), "label": 0}]
    made = inject_examples(data, CANARIES, lambda text: {"ids": torch.tensor(list(text.encode())), "label": 1})
    assert sum(example["label"] for example in made) == 6
    assert len(inject_examples([], CANARIES)) == 6


def test_examples_of_another_structure_are_refused_without_their_text() -> None:
    with pytest.raises(DataError, match=r"encode returned str for canary 'pin-1x'; expected") as error:
        inject_examples([{"ids": [1]}], CANARIES, lambda text: text)
    assert CANARIES[1].text not in str(error.value)


@pytest.mark.parametrize("given", ["a text", {"text": ["a"]}, torch.zeros(3), None])
def test_other_containers_are_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"examples is of type \w+; expected a list, a tuple or a datasets.Dataset"):
        inject_examples(given, CANARIES)


def test_arguments_are_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match="canaries is of type list; expected a CanarySet"):
        inject_examples(TEXTS, list(CANARIES))
    with pytest.raises(ArgumentError, match="encode is 'text'; expected a function"):
        inject_examples(TEXTS, CANARIES, "text")
    with pytest.raises(ArgumentError, match="encode is None; expected a function that makes an example of a text"):
        inject_examples([[1, 2, 3]], CANARIES)


@pytest.fixture
def datasets() -> Any:
    return pytest.importorskip("datasets")


class TestHuggingFaceDatasets:
    def test_a_dataset_stays_one_with_its_features(self, datasets: Any) -> None:
        data = datasets.Dataset.from_dict({"text": TEXTS, "label": list(range(40))})
        made = inject_examples(data, CANARIES, lambda text: {"text": text, "label": -1}, seed=3)
        assert isinstance(made, datasets.Dataset)
        assert made.features == data.features
        assert made["text"][:] == inject_examples(TEXTS, CANARIES, seed=3)  # the same places as in a list
        assert [label for label in made["label"] if label >= 0] == list(range(40))

    def test_one_column_of_texts_needs_no_encode(self, datasets: Any) -> None:
        made = inject_examples(datasets.Dataset.from_dict({"content": TEXTS}), CANARIES)
        assert Counter(made["content"])[CANARIES[2].text] == 5

    def test_token_ids_and_formats_are_kept(self, datasets: Any) -> None:
        data = datasets.Dataset.from_dict({"input_ids": [[1, 2, 3], [4, 5]]}).with_format("torch")
        made = inject_examples(data, CANARIES, lambda text: {"input_ids": list(text.encode())})
        assert made.format["type"] == "torch"
        assert made.features == data.features
        assert Counter(bytes(row["input_ids"].tolist()) for row in made)[CANARIES[2].text.encode()] == 5

    def test_other_columns_are_refused(self, datasets: Any) -> None:
        data = datasets.Dataset.from_dict({"text": TEXTS})
        with pytest.raises(
            DataError, match=r"encode returned \['input_ids'\] for canary .*; expected a dict with the columns .*'text'"
        ):
            inject_examples(data, CANARIES, lambda text: {"input_ids": [1]})

    def test_parts_and_streams_say_what_to_do(self, datasets: Any) -> None:
        data = datasets.Dataset.from_dict({"text": TEXTS})
        with pytest.raises(
            ArgumentError, match=r'DatasetDict; .* Insert into the part that is trained on: data\["train"\]'
        ):
            inject_examples(datasets.DatasetDict(train=data), CANARIES)
        with pytest.raises(ArgumentError, match=r"IterableDataset; .* A stream has no places"):
            inject_examples(data.to_iterable_dataset(), CANARIES)
