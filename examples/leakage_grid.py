"""Leakage by insertion rate and cardinality, as in "Privacy Leakage in LSTM", on a small model of characters.

For each cell of the grid, social security numbers, card numbers and addresses are put into a text, as many lines of
each as the insertion rate says and as many different ones as the cardinality says; an LSTM is trained on it; text is
sampled from it, and what appears is counted. Beside it, an attacker who knows how each secret begins ("SSN 123", "Mr
Harry") extracts the rest.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import torch
from torch import nn

from lightning_exposure import CharTokenizer
from lightning_exposure.data.corpora import python_topics
from lightning_exposure.leakage.grid import LeakageRow, leakage_cell
from lightning_exposure.modules import LanguageModel

WINDOW = 64


def train(text: str, epochs: int, units: int, seed: int) -> tuple[nn.Module, CharTokenizer]:
    """A model that has read a text."""
    tokenizer = CharTokenizer.from_text(text, "0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    tokens = torch.tensor(tokenizer.encode(text))
    torch.manual_seed(seed)
    model = LanguageModel(
        "lstm", vocab_size=tokenizer.vocab_size, hidden_size=units, embedding_size=32, num_layers=1, dropout=0.0
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(epochs):
        # Windows begin elsewhere in every epoch, so that no secret is cut in two every time.
        starts = torch.arange(int(torch.randint(WINDOW, ())), len(tokens) - WINDOW - 1, WINDOW)
        for chosen in starts[torch.randperm(len(starts))].split(8):
            batch = tokens[chosen[:, None] + torch.arange(WINDOW + 1)]
            logits, _ = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
    return model.eval(), tokenizer


def main() -> None:
    """Train, sample, attack; print the rows, and write them and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="one cell, hardly any training, in seconds")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.02, 0.06, 0.2], help="lines of each class a line")
    parser.add_argument(
        "--cardinalities", type=int, nargs="+", default=[1, 3, 9], help="different secrets of each class"
    )
    parser.add_argument("--characters", type=int, default=20_000, help="of the text (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="(default: %(default)s)")
    parser.add_argument("--hidden_size", type=int, default=96, help="units of the LSTM (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=300, help="texts of 200 characters (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: %(default)s)")
    parser.add_argument("--csv", type=Path, help="where to write the table")
    parser.add_argument("--figure", type=Path, help="where to write the heat maps")
    options = parser.parse_args()
    if options.fast:
        options.rates, options.cardinalities, options.epochs, options.hidden_size = [0.1], [2], 1, 16
        options.characters, options.samples = 5_000, 10
    torch.set_num_threads(1)
    text = python_topics()[: options.characters]
    rows: list[LeakageRow] = []
    print("class        rate  secrets  copies  appeared  in samples  from a known beginning")
    began = time.process_time()
    for rate in options.rates:
        for cardinality in options.cardinalities:
            cell = leakage_cell(
                text,
                lambda woven: train(woven, options.epochs, options.hidden_size, options.seed),
                rate=rate,
                cardinality=cardinality,
                samples=options.samples,
                seed=options.seed,
            )
            rows += cell
            for row in cell:
                print(
                    f"{row.kind:<12} {row.rate:4.0%} {row.cardinality:8d} {row.copies:7.1f} {row.leaked:9d} "
                    f"{row.leaky_samples:7d}/{row.samples} {row.targeted:23d}", flush=True
                )  # fmt: skip
    print(f"{time.process_time() - began:.0f} s of CPU time")
    if options.csv is not None:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0].to_dict()), lineterminator="\n")
            writer.writeheader()
            writer.writerows(row.to_dict() for row in rows)
    if options.figure is not None:
        from lightning_exposure.report.figures.leakage import leakage_heat_maps
        from lightning_exposure.report.figures.style import save

        save(leakage_heat_maps(rows), options.figure)


if __name__ == "__main__":
    main()
