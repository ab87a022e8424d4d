"""`redact_data`: one line around a data module, and the model never sees a secret."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from lightning_exposure import CanaryDataModule, CanarySet, SecretFormat
from lightning_exposure.data import TextDataModule
from lightning_exposure.defences import RedactedDataset, redact_data
from lightning_exposure.errors import ArgumentError, DataError
from lightning_exposure.report.record import RunRecord
from lightning_exposure.report.recording import run_record
from lightning_exposure.secrets import Scanner

KEY = b"a key for these tests"
TEXTS = [f"line {number}: my ssn is 536-90-{4300 + number}" for number in range(8)]


def as_tokens(texts: list[str]) -> torch.Tensor:
    """Tokenizes in the collate function, as one should."""
    return torch.tensor([list(text.ljust(40).encode()) for text in texts])


class Letters(pl.LightningDataModule):
    """A data module of a user's own, with a hook and a state."""

    def __init__(self, workers: int = 0) -> None:
        super().__init__()
        self.workers = workers
        self.ready = False

    def setup(self, stage: str) -> None:
        self.ready = True

    def train_dataloader(self) -> Any:
        assert self.ready
        return DataLoader(TEXTS, batch_size=4, collate_fn=as_tokens, num_workers=self.workers)

    def val_dataloader(self) -> Any:
        return [DataLoader(TEXTS[:2], collate_fn=as_tokens)]

    def state_dict(self) -> dict[str, Any]:
        return {"ready": self.ready}


class Reader(pl.LightningModule):
    """Remembers what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.texts: list[str] = []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.texts += [bytes(row).decode().strip() for row in batch.tolist()]
        return self.weight.sum()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.texts += [bytes(row).decode().strip() for row in batch.tolist()]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(data: Any, epochs: int = 1) -> list[str]:
    model = Reader()
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, datamodule=data)
    return model.texts


@pytest.mark.parametrize("how", ["mask", "pseudonym"])
def test_a_model_never_sees_a_secret(how: Any) -> None:
    original = Letters()
    data = redact_data(original, how=how, key=KEY)
    assert isinstance(data, Letters)
    texts = fit(data)
    assert len(texts) == 2 + 8 + 2  # with the sanity check
    assert not any("536-90" in text for text in texts)
    assert all(re.fullmatch(r"line \d: my ssn is (\[ssn\]|(000|666)-\d\d-\d{4})", text) for text in texts)
    assert len(set(texts)) == 8
    assert not original.ready, "what was given is left as it is"
    assert data.state_dict() == {"ready": True}


def test_workers_agree_on_pseudonyms() -> None:
    alone = redact_data(DataLoader(TEXTS, batch_size=1), how="pseudonym", key=KEY)
    shared = redact_data(DataLoader(TEXTS, batch_size=1, num_workers=2), how="pseudonym", key=KEY)
    assert list(alone) == list(shared) == list(shared)


def test_it_can_be_sent_to_another_process() -> None:
    data = redact_data(Letters(), how="pseudonym", key=KEY)
    again = pickle.loads(pickle.dumps(data))
    assert type(again).__name__ == "RedactedLetters"
    again.setup("fit")
    data.setup("fit")
    for one, other in zip(data.train_dataloader(), again.train_dataloader(), strict=True):
        assert (one == other).all()


def test_canaries_go_around_it_and_not_into_it() -> None:
    canaries = CanarySet.draw(SecretFormat("my ssn is ###-##-####", name="ssn"), repetitions=[2], seed=1)
    data = CanaryDataModule(redact_data(Letters()), canaries, encode=str)
    texts = fit(data)
    assert texts.count(canaries.texts[0]) == 2
    assert not any("536-90-43" in text for text in texts)
    with pytest.raises(ArgumentError, match="data is a CanaryDataModule; expected one without canaries"):
        redact_data(data)
    record = RunRecord(canaries)
    data.add_to_record(record)
    assert [(entry["name"], entry["how"]) for entry in record.defences] == [("redaction", "mask")]
    assert record.ledger == {canaries[0].id: 2}


def test_the_record_of_a_run_says_that_its_data_were_redacted() -> None:
    trainer = pl.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, accelerator="cpu")
    trainer.datamodule = redact_data(Letters(), Scanner(kinds=["ssn"]), "pseudonym")  # type: ignore[attr-defined]
    assert run_record(trainer).defences == [{"name": "redaction", "how": "pseudonym", "kinds": ["ssn"]}]


class Row(NamedTuple):
    text: str
    label: int


def test_every_string_of_an_item_is_redacted() -> None:
    secret = "my ssn is 536-90-4399"
    items = [{"text": secret, "tags": [secret, 3]}, {"text": "hello", "tags": []}]
    redacted = redact_data(items)
    assert isinstance(redacted, RedactedDataset)
    assert redacted[0] == {"text": "my ssn is [ssn]", "tags": ["my ssn is [ssn]", 3]}
    assert redact_data([Row(secret, 1)])[0] == Row("my ssn is [ssn]", 1)
    assert items[0]["text"] == secret
    assert len(redacted) == 2


class Stream(IterableDataset[str]):
    def __iter__(self) -> Iterator[str]:
        yield from TEXTS


def test_streams() -> None:
    masked = list(redact_data(DataLoader(Stream(), batch_size=None, num_workers=1)))
    assert masked == [text[:-11] + "[ssn]" for text in TEXTS]
    pseudonyms = list(redact_data(Stream(), how="pseudonym", key=KEY))
    assert len(set(pseudonyms)) == 8
    with pytest.raises(ArgumentError, match="num_workers=1; expected 0 with how='pseudonym'"):
        redact_data(DataLoader(Stream(), num_workers=1), how="pseudonym")


def test_items_without_text_are_refused_before_training() -> None:
    with pytest.raises(DataError, match="data has items of type Tensor without any text in them; expected texts"):
        redact_data(torch.zeros(3, 4))
    data = redact_data(TextDataModule("some text\n" * 99, window=8, val_fraction=0.0))
    data.setup()
    with pytest.raises(DataError, match="Redact before tokenization"):
        data.train_dataloader()
    with pytest.raises(DataError, match="without any text"):
        list(redact_data(DataLoader(IntegerStream())))


class IntegerStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(3)


@pytest.mark.parametrize("data", [3, None, "a text", {"a": "b"}])
def test_what_is_no_data_is_refused(data: Any) -> None:
    with pytest.raises(ArgumentError, match=r"data is .*; expected a LightningDataModule, a DataLoader or a dataset"):
        redact_data(data)
