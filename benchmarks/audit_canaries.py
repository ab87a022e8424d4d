"""What canaries made for audits show, beside uniform ones on the same budget.

    python -m benchmarks.audit_canaries --csv audit-canaries.csv

An LSTM on Python's help texts, with 200 canaries of 9 characters behind the same prompt, each inserted once if a fair
coin says so. Only which canaries they are differs: uniform ones of digits; those of the costliest, or of the cheapest,
tenth for a model that was trained on the same texts without canaries; and characters that the texts never use, ten of
them or a hundred. The model has the same vocabulary with all of them. Each training is a line of the table, written
when it is known; what the file has already is not computed again.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from scipy import stats
from torch.utils.data import DataLoader

from lightning_exposure import (
    AuditCallback,
    CanaryDataModule,
    CanarySet,
    CharTokenizer,
    DifferentialPrivacy,
    SecretFormat,
    SecretTree,
)
from lightning_exposure.data.corpora import python_topics
from lightning_exposure.modules import LanguageModel
from lightning_exposure.privacy import draw_audit_canaries, unused_token_format

COLUMNS = ("training", "design", "seed", "tpr_at_1_percent_fpr", "auc", "epsilon_lower", "seconds")
MEASURES = ("tpr_at_1_percent_fpr", "auc", "epsilon_lower")
COUNT, WINDOW, DELTA = 200, 41, 1e-5
PROMPT = "the code is "
SPARE = "".join(map(chr, range(0x4E00, 0x4E00 + 100)))
"""Further characters: of a large vocabulary, a text uses a part."""
FEW = 10
"""As many of them as there are digits: then both formats have as many secrets of as many tokens."""
TEXT = python_topics()[:40_000]
TOKENIZER = CharTokenizer.from_text(TEXT, PROMPT, "0123456789", SPARE)
DIGITS = SecretFormat(PROMPT + "#" * 9, name="digits")
TRAININGS: Mapping[str, tuple[int, float | None]] = MappingProxyType(
    {"5 epochs": (5, None), "10 epochs": (10, None), "10 epochs, private": (10, 0.2)}
)
"""How many epochs, and the noise multiplier of private training."""


def example(piece: str) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.tensor(TOKENIZER.encode(piece.ljust(WINDOW)))
    return ids[:-1], ids[1:]


def fitted(seed: int, epochs: int, canaries: CanarySet | None = None, *callbacks: Callback) -> LanguageModel:
    """A model that is trained on the text, with canaries or without."""
    seed_everything(seed, verbose=False)
    windows = [example(TEXT[start : start + WINDOW]) for start in range(0, len(TEXT) - WINDOW, WINDOW)]
    data = DataLoader(windows, batch_size=64, shuffle=True)
    model = LanguageModel("lstm", vocab_size=TOKENIZER.vocab_size, hidden_size=96, lr=0.005)
    trainer = Trainer(
        max_epochs=epochs, callbacks=list(callbacks), logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
    )  # fmt: skip
    if canaries is None:
        trainer.fit(model, data)
    else:
        trainer.fit(model, CanaryDataModule(data, canaries, encode=example))
    return model


@cache
def reference() -> SecretTree:
    """The digits for a model that has seen no canary."""
    return SecretTree(fitted(12345, epochs=10), DIGITS, TOKENIZER)


def uniform(seed: int) -> CanarySet:
    return CanarySet.draw(DIGITS, repetitions=[1] * COUNT, seed=seed, holdout=0.5)


def costliest(seed: int) -> CanarySet:
    return draw_audit_canaries(reference(), COUNT, band=(0.9, 1.0), seed=seed)


def cheapest(seed: int) -> CanarySet:
    return draw_audit_canaries(reference(), COUNT, band=(0.0, 0.1), seed=seed)


def unused(seed: int, *used: str) -> CanarySet:
    format = unused_token_format(TOKENIZER, [TEXT, "0123456789", *used], length=9, prompt=PROMPT)
    return CanarySet.draw(format, repetitions=[1] * COUNT, seed=seed, holdout=0.5, purpose="audit")


def few_unused(seed: int) -> CanarySet:
    return unused(seed, SPARE[FEW:])


DESIGNS: Mapping[str, Callable[[int], CanarySet]] = MappingProxyType(
    {
        "uniform": uniform,
        "costliest tenth": costliest,
        "cheapest tenth": cheapest,
        "10 unused tokens": few_unused,
        "100 unused tokens": unused,
    }
)


def row(training: str, design: str, seed: int) -> dict[str, str]:
    """One training, and what its audit shows."""
    canaries = DESIGNS[design](seed)
    begin = time.perf_counter()
    audit = AuditCallback(canaries, TOKENIZER, delta=DELTA)
    epochs, noise = TRAININGS[training]
    private = [] if noise is None else [_private(noise, seed)]
    fitted(seed, epochs, canaries, *private, audit)
    assert audit.result is not None
    numbers = [f"{getattr(audit.result, name):.4f}" for name in MEASURES]
    cells = (training, design, str(seed), *numbers, f"{time.perf_counter() - begin:.1f}")
    return dict(zip(COLUMNS, cells, strict=True))


def _private(noise: float, seed: int) -> DifferentialPrivacy:
    # Nothing is proven on the way: that takes longer than these steps, and tests have shown it.
    return DifferentialPrivacy(
        noise_multiplier=noise, max_grad_norm=1.0, delta=DELTA, seed=seed, verify_steps=0, verbose=False
    )


def summary(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """The means over seeds with 95% intervals, and those of the difference to uniform canaries, seed by seed."""
    header = ("training", "design", "seeds", *MEASURES, "epsilon_lower above uniform")
    yield "| " + " | ".join(header) + " |"
    yield "| " + " | ".join("---" for _ in header) + " |"
    for training in TRAININGS:
        found = {
            design: {one["seed"]: one for one in rows if (one["training"], one["design"]) == (training, design)}
            for design in DESIGNS
        }
        for design, by_seed in found.items():
            if not by_seed:
                continue
            cells = [_interval([float(one[name]) for one in by_seed.values()]) for name in MEASURES]
            shared = [seed for seed in by_seed if seed in found["uniform"]]
            gains = [float(by_seed[s]["epsilon_lower"]) - float(found["uniform"][s]["epsilon_lower"]) for s in shared]
            gain = "" if design == "uniform" else _interval(gains)
            yield "| " + " | ".join((training, design, str(len(by_seed)), *cells, gain)) + " |"


def _interval(values: Sequence[float]) -> str:
    """The mean, and how far its 95% interval (Student's t) reaches."""
    if len(values) < 2:
        return f"{np.mean(values):.2f}"
    reach = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return f"{np.mean(values):.2f} ± {reach:.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit_canaries", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10, help="how many trainings of each kind")
    parser.add_argument("--csv", type=Path, required=True, help="the table; what it has is not computed again")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    rows: list[dict[str, str]] = []
    if options.csv.exists():
        with options.csv.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
    else:
        options.csv.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    known = {tuple(one[name] for name in COLUMNS[:3]) for one in rows}
    for training in TRAININGS:
        for seed in range(options.seeds):
            for design in DESIGNS:
                if (training, design, str(seed)) not in known:
                    rows.append(row(training, design, seed))
                    with options.csv.open("a", newline="", encoding="utf-8") as file:
                        csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(rows[-1])
    print(*summary(rows), sep="\n")


if __name__ == "__main__":
    main()
