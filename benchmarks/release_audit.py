"""How much the audit of a release proves, by which score, and how often too much.

    python -m benchmarks.release_audit --csv release-scores.csv
    python -m benchmarks.release_audit --simulated 1000 --csv release-alarms.csv

The first trains LSTMs on Python's help texts with 400 canaries, lets them write, and audits what they wrote with
several scores, alone and together. The second audits simulated releases of generators whose epsilon is known, with
n-grams. Each line is written when it is known, and what the file has already is not computed again.
"""

from __future__ import annotations

import argparse
import csv
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer, seed_everything
from torch.utils.data import DataLoader

from benchmarks.simulated_releases import blind, canaries, memorizing, noisy_counts, randomized_response
from lightning_exposure import AuditCallback, CanaryDataModule, CanarySet, CharTokenizer, SecretFormat
from lightning_exposure.data.corpora import python_topics
from lightning_exposure.leakage import TextWriter
from lightning_exposure.modules import LanguageModel
from lightning_exposure.privacy import audit
from lightning_exposure.synthetic import NeuralScorer, NgramScorer, audit_synthetic
from lightning_exposure.synthetic.text._ngrams import NgramModel
from lightning_exposure.synthetic.text.audit import standard_scores
from lightning_exposure.synthetic.text.scorers import AskedSecret

COLUMNS = ("epochs", "seed", "texts", "score", "epsilon_lower", "auc")
ALARMS = ("generator", "epsilon", "releases", "mean", "above")
DELTA, ERROR, WINDOW, UNITS, LETTERS, COUNT = 1e-5, 0.05, 40, 128, 40_000, 400
FORMAT = SecretFormat("my ssn is ###-##-####")
Row = dict[str, Any]


# --- scores, on what real models wrote --------------------------------------------------------------------------


class Cost:
    """What a scorer says without taking off what a secret costs by the frequencies of its characters alone."""

    def __init__(self, scorer: Any) -> None:
        self.scorer = scorer

    def __call__(self, texts: Sequence[str], asked: Sequence[AskedSecret], *, seed: int) -> Any:
        model = NgramModel(texts, [secret.text for secret in asked], order=1)
        by_frequency = model.bits_by_order([secret.text[secret.start :] for secret in asked])
        return self.scorer(texts, asked, seed=seed) - np.array([bits.sum() for bits in by_frequency])


class Remembered:
    """A scorer that is asked once: the networks are trained for two of the scores."""

    def __init__(self, scorer: Any) -> None:
        self.scorer, self.known = scorer, None

    def __call__(self, texts: Sequence[str], asked: Sequence[AskedSecret], *, seed: int) -> Any:
        if self.known is None:
            self.known = self.scorer(texts, asked, seed=seed)
        return self.known


def release(
    epochs: int, seed: int, texts: int, letters: int, units: int, count: int
) -> tuple[CanarySet, list[str], Row]:
    """What a model writes that was trained on a text with canaries; and what the model itself gives away."""
    seed_everything(seed, verbose=False)
    drawn = CanarySet.draw(FORMAT, repetitions=[1] * count, seed=seed, holdout=0.5, purpose="audit")
    text = " ".join(python_topics().split())[:letters]
    tokenizer = CharTokenizer.from_text("\n", text, *drawn.texts)

    def example(piece: str) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.tensor(tokenizer.encode("\n" + piece.ljust(WINDOW)))
        return ids[:-1], ids[1:]

    pieces = [example(text[place : place + WINDOW]) for place in range(0, len(text) - WINDOW + 1, WINDOW)]
    data = CanaryDataModule(DataLoader(pieces, batch_size=32, shuffle=True), drawn, encode=example)
    callback = AuditCallback(drawn, tokenizer, delta=DELTA)
    model = LanguageModel(
        "lstm", vocab_size=tokenizer.vocab_size, hidden_size=units, num_layers=1, embedding_size=64, lr=0.005
    )
    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=[callback], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, data)
    assert callback.result is not None
    writer = TextWriter(model, tokenizer, prompt="\n", length=WINDOW, seed=seed)
    written = [each.text[each.start :].strip() for each in writer.write(range(texts))]
    return drawn, written, {"epsilon_lower": callback.result.epsilon_lower, "auc": callback.result.auc}


def score_rows(texts: list[str], drawn: CanarySet, neural: NeuralScorer) -> Iterator[Row]:
    """What each score proves about a release, alone, and n-grams and networks together."""
    networks = Remembered(neural)
    scorers = {
        "n-grams, cost": Cost(NgramScorer()), "n-grams": NgramScorer(), "networks, cost": Cost(networks),
        "networks": networks,
    }  # fmt: skip
    scores = {name: standard_scores(name, scorer, texts, drawn, 0) for name, scorer in scorers.items()}
    inside = np.array([not canary.held_out for canary in drawn])

    def proved(given: Any, error: float = ERROR) -> Row:
        found = audit(given[inside], given[~inside], delta=DELTA, confidence=1.0 - error)
        return {"epsilon_lower": found.epsilon_lower, "auc": found.auc}

    for name, given in scores.items():
        yield {"score": name, **proved(given)}
    both = scores["n-grams"], scores["networks"]
    yield {"score": "both, the better with half the error", **max((proved(it, ERROR / 2) for it in both), key=_bound)}
    yield {"score": "both, added up", **proved(np.mean(both, axis=0))}


def _bound(row: Row) -> float:
    return float(row["epsilon_lower"])


def trained_rows(done: set[tuple[str, ...]], sizes: Mapping[str, Any]) -> Iterator[Row]:
    """All rows of the first table that are not done."""
    for epochs in sizes["epochs"]:
        for seed in sizes["seeds"]:
            if (f"{epochs}", f"{seed}") in done:
                continue
            drawn, texts, model = release(
                epochs, seed, max(sizes["texts"]), sizes["letters"], sizes["units"], sizes["canaries"]
            )
            rows = [{"texts": 0, "score": "the model itself", **model}]
            for size in sizes["texts"]:
                rows += [{"texts": size, **row} for row in score_rows(texts[:size], drawn, sizes["neural"])]
            # Together: what is half of a training run is not known to be done.
            yield from ({"epochs": epochs, "seed": seed, **row} for row in rows)


def summary(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Means over all trainings, for each number of texts and each score."""
    groups: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((int(row["texts"]), str(row["score"])), []).append(row)
    return [
        {
            "texts": texts, "score": score, "releases": len(group),
            **{name: float(np.mean([float(row[name]) for row in group])) for name in ("epsilon_lower", "auc")},
        }
        for (texts, score), group in groups.items()
    ]  # fmt: skip


# --- false alarms, on simulated releases ------------------------------------------------------------------------

GENERATORS: Mapping[str, tuple[Callable[[CanarySet, int], list[str]], float | None]] = MappingProxyType(
    {
        "never saw a canary": (blind, 0.0),
        "randomized response": (randomized_response, 1.0),
        "noisy counts": (noisy_counts, 1.0),
        "memorizes": (memorizing, None),
    }
)


def alarm_row(name: str, releases: int) -> Row:
    """How often the bound of a generator is above its epsilon."""
    generator, epsilon = GENERATORS[name]
    bounds = []
    for seed in range(releases):
        drawn = canaries(100, seed=seed)
        found = audit_synthetic(generator(drawn, seed + 10**6), drawn, scorers=["ngram"], edits=0, delta=DELTA)
        bounds.append(found.epsilon_lower)
    above = "" if epsilon is None else sum(bound > epsilon for bound in bounds)
    known = "none" if epsilon is None else epsilon
    return {"generator": name, "epsilon": known, "releases": releases, "mean": float(np.mean(bounds)), "above": above}


# --- the command ------------------------------------------------------------------------------------------------

USUAL: Mapping[str, Any] = MappingProxyType(
    {
        "epochs": (10, 20), "seeds": range(4), "texts": (1_500, 6_000), "letters": LETTERS, "units": UNITS,
        "canaries": COUNT, "neural": NeuralScorer(),
    }
)  # fmt: skip


def main(arguments: Sequence[str] | None = None, sizes: Mapping[str, Any] = USUAL) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, required=True, metavar="FILE", help="the table; goes on where it ends")
    parser.add_argument("--simulated", type=int, metavar="N", help="audit N simulated releases of each generator")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    if options.simulated is not None:
        known = {row["generator"] for row in _read(options.csv)}
        _append(options.csv, ALARMS, (alarm_row(name, options.simulated) for name in GENERATORS if name not in known))
        rows: Sequence[Mapping[str, Any]] = _read(options.csv)
    else:
        done = {(row["epochs"], row["seed"]) for row in _read(options.csv)}
        _append(options.csv, COLUMNS, trained_rows(done, sizes))
        rows = summary(_read(options.csv))
    for row in rows:
        print(
            "  ".join(
                f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
            )
        )


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _append(path: Path, columns: Sequence[str], rows: Iterator[Row]) -> None:
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns)
        if new:
            table.writeheader()
        for row in rows:
            table.writerow(
                {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
            )
            file.flush()


if __name__ == "__main__":
    main()
