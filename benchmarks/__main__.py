"""`python -m benchmarks`: train a model, measure, print a table, and say whether all targets were met."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch

from benchmarks.callback import benchmark_callback
from benchmarks.enumeration import benchmark_enumeration
from benchmarks.estimates import benchmark_estimates
from benchmarks.exact import benchmark_exact
from benchmarks.extraction import benchmark_credit_card, benchmark_extraction
from benchmarks.leakage import benchmark_leakage
from benchmarks.models import Recipe, Subject, train_or_load
from benchmarks.precision import benchmark_precision
from benchmarks.private_training import benchmark_private_training
from benchmarks.private_users import benchmark_private_users
from benchmarks.private_ways import benchmark_private_ways
from benchmarks.ranking import benchmark_ranking
from benchmarks.scanning import benchmark_scanning
from benchmarks.scoring import benchmark_scoring
from benchmarks.table import Row, as_markdown, as_text
from benchmarks.virtual_batches import benchmark_virtual_batches

WITH_MODEL: Mapping[str, Callable[[Subject], list[Row]]] = MappingProxyType(
    {
        "scoring": benchmark_scoring,
        "enumeration": benchmark_enumeration,
        "exact": benchmark_exact,
        "estimates": benchmark_estimates,
        "precision": benchmark_precision,
        "extraction": benchmark_extraction,
        "leakage": benchmark_leakage,
    }
)


def _huggingface() -> list[Row]:
    from benchmarks.huggingface import benchmark_huggingface  # transformers is an extra that the others do without

    return benchmark_huggingface()


def _subword_leakage() -> list[Row]:
    from benchmarks.leakage import benchmark_subword_leakage  # tokenizers is an extra

    return benchmark_subword_leakage()


def _sampling() -> list[Row]:
    from benchmarks.sampling import benchmark_sampling  # transformers is an extra

    return benchmark_sampling()


def _gpt2() -> list[Row]:
    from benchmarks.gpt2 import benchmark_gpt2

    return benchmark_gpt2()


def _proof() -> list[Row]:
    from benchmarks.proof_cost import benchmark_proof_cost  # needs transformers and peft

    return benchmark_proof_cost()


def _lora() -> list[Row]:
    from benchmarks.private_lora import benchmark_private_lora  # needs transformers and peft

    return benchmark_private_lora()


WITHOUT_MODEL: Mapping[str, Callable[[], list[Row]]] = MappingProxyType(
    {
        "ranking": benchmark_ranking,
        "scanning": benchmark_scanning,
        "subwords": _subword_leakage,
        "sampling": _sampling,
        "cards": benchmark_credit_card,
        "callback": benchmark_callback,
        "private": benchmark_private_training,
        "ways": benchmark_private_ways,
        "users": benchmark_private_users,
        "parts": benchmark_virtual_batches,
        "lora": _lora,
        "proof": _proof,
        "huggingface": _huggingface,
        "gpt2": _gpt2,
    }
)
NAMES = (*WITH_MODEL, *WITHOUT_MODEL)
MARKER = "<!-- benchmarks -->"

DESCRIPTION = """\
Measure what the library promises about speed, memory and precision.

A two-layer LSTM of 200 units is trained for a minute or so on the manual that comes with Python, with canaries
" the random number is #########" in it. Then these are measured, all on that model:

  scoring      65,536 given secrets: shared prefixes against full forward passes
  enumeration  all 10^6 secrets of a format: one walk against full forward passes; peak memory
  exact        the exact rank of a secret among 10^9: model evaluations, time, peak memory
  estimates    errors of the estimates at ranks 1 to 10^5 of 10^6, against the exact value
  precision    what a precision of 2, 1, 0.5 and 0.25 bits costs: expansions, errors, intervals that hold the truth
  extraction   the most likely of 10^9 secrets with a proof; a search for what is not there: speed, peak memory
  leakage      how likely each canary is to leak, one bit wide: expansions against samples
  ranking      exposure of 1,000 given scores among 10^6 given references (needs no model)
  scanning     100,000 lines with 1,000 secrets in them: how long it takes to find them (needs no model)
  subwords     how likely a secret is to leak over all its spellings in subwords (a small model of its own)
  sampling     free sampling, an LSTM and a GPT-2 of their own: tokens per second, beside the bare model
  cards        a credit card among 10^15, inserted 8 times in a training run of its own
  callback     what measuring 10 and 100 canaries after every epoch adds to a training run
  private      a private training step of ours and of Opacus, against a plain one: time, peak memory (no model either)
  ways         a private step clipped per layer, with an adaptive norm, with secure noise, against the usual (no model)
  users        a private step that clips users against one that clips records: time (no model)
  parts        private batches in parts (max_physical_batch_size) against whole ones: peak memory, time (no model)
  lora         a private step of LoRA on a GPT-2, ours and Opacus', against plain LoRA: time, peak memory (no model)
  proof        a GPT-2 of 109 million parameters: a short private training with its proof against one without
  huggingface  a GPT-2 of its own with subwords and a prompt of 60 tokens: scoring, searching, exact exposure
  gpt2         a GPT-2 of 124 million parameters and 50,257 tokens: 5 canaries with and without a precision
"""
EPILOG = "The exit code is 1 if a target was missed. The machine should have nothing else to do meanwhile."


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    rows: list[Row] = []
    about = [_machine()]
    chosen = options.only or NAMES
    if any(name in WITH_MODEL for name in chosen):
        _progress("training")
        subject, seconds = train_or_load(Recipe(), options.cache)
        about.append(f"Model trained in {seconds:.0f} s." if seconds else f"Model from {options.cache.name}.")
    for name in NAMES:
        if name in chosen:
            _progress(name)
            begin = time.perf_counter()
            rows += WITH_MODEL[name](subject) if name in WITH_MODEL else WITHOUT_MODEL[name]()
            _progress(f"{name}: done in {time.perf_counter() - begin:.0f} s")
    missed = sum(row.missed for row in rows)
    promised = sum(row.target is not None for row in rows)
    about.append(f"{promised - missed} of {promised} targets met.")
    print(as_text(rows), "", *about, sep="\n")
    if options.markdown is not None:
        write_markdown(options.markdown, as_markdown(rows) + "\n" + " ".join(about) + "\n")
    return 1 if missed else 0


def write_markdown(file: Path, table: str) -> None:
    """Write the table to a file; if there is a page already that has a place for it, below that place."""
    page = file.read_text(encoding="utf-8") if file.exists() else ""
    before = page[: page.index(MARKER)] + MARKER + "\n\n" if MARKER in page else ""
    file.write_text(before + table, encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help="run only these: " + ", ".join(NAMES))
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help=f"also write the table as Markdown to a file, below {MARKER} if it has that line",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="FILE",
        help="take the trained model from this file, or write it there if there is none; without it nothing is kept",
    )
    return parser


def _machine() -> str:
    return (
        f"One run on {os.cpu_count()} CPUs ({platform.machine()}, {platform.system()}), Python "
        f"{platform.python_version()}, PyTorch {torch.__version__}, threads: {torch.get_num_threads()}."
    )


def _progress(message: str) -> None:
    # Not to standard output: that is for the table.
    print(f"[{message}]", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
