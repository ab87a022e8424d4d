"""Social security numbers in the training data of a translation model: how exposed are they?

The corpus is made up by a small grammar, English and German. Some pairs of sentences with a social security number,
the same on both sides, are inserted 1, 2 and 4 times; others are drawn and never inserted, for comparison.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from lightning_exposure import (
    Canary,
    CanaryDataModule,
    CanarySet,
    SecretFormat,
    SecretTree,
    WordTokenizer,
    measure_exposure,
)
from lightning_exposure.adapters import Seq2SeqAdapter
from lightning_exposure.exposure import PoorFitWarning, measure_tied_exposure
from lightning_exposure.modules import EncoderDecoder
from lightning_exposure.secrets import TiedFormats

INSERTIONS = (0, 1, 2, 4)
PROMPTS = "my social security number is", "meine sozialversicherungsnummer ist"
BLANKS = "# # # - # # - # # # #"
SSN = TiedFormats(*(SecretFormat(f"{prompt} {BLANKS}", name="ssn") for prompt in PROMPTS))

WHO = [
    ("i", "ich", "e"), ("we", "wir", "en"), ("they", "sie", "en"), ("my brother", "mein bruder", "t"),
    ("the teacher", "die lehrerin", "t"), ("our neighbour", "unser nachbar", "t"), ("a friend", "ein freund", "t"),
    ("the doctor", "der arzt", "t"),
]  # fmt: skip
DOES = [
    ("buy", "kauf"), ("sell", "verkauf"), ("want", "such"), ("paint", "mal"), ("need", "brauch"), ("clean", "putz"),
    ("bring", "bring"), ("get", "hol"),
]  # fmt: skip
WHAT = [
    ("the old house", "das alte haus"), ("a red bicycle", "ein rotes fahrrad"), ("the small boat", "das kleine boot"),
    ("a heavy book", "ein schweres buch"), ("the green door", "die grüne tür"), ("a warm coat", "einen warmen mantel"),
    ("the new table", "den neuen tisch"), ("two chairs", "zwei stühle"), ("fresh bread", "frisches brot"),
    ("the long letter", "den langen brief"),
]  # fmt: skip
WHEN = [
    ("in the city", "in der stadt"), ("near the river", "am fluss"), ("at the market", "auf dem markt"),
    ("behind the school", "hinter der schule"), ("on monday", "am montag"), ("every summer", "jeden sommer"),
    ("after work", "nach der arbeit"), ("before breakfast", "vor dem frühstück"),
]  # fmt: skip
NUMBERS = [
    ("the bus number # leaves at # #", "der bus nummer # fährt um # #"), ("the room is # # #", "das zimmer ist # # #"),
    ("this costs # # euros", "das kostet # # euro"), ("the code is # # # #", "der code ist # # # #"),
    ("my phone number is # # # # # #", "meine telefonnummer ist # # # # # #"),
]  # fmt: skip


def sentence(generator: random.Random) -> tuple[str, str]:
    """A sentence and its translation; in one of ten there is a number, so that the model learns to copy some."""
    if generator.random() < 0.1:
        english, german = generator.choice(NUMBERS)
        for digit in generator.choices("0123456789", k=english.count("#")):
            english, german = english.replace("#", digit, 1), german.replace("#", digit, 1)
        return english, german
    (who, wer, ending), (does, tut), (what, was), (when, wann) = map(generator.choice, (WHO, DOES, WHAT, WHEN))
    return f"{who} {does}{'s' if ending == 't' else ''} {what} {when}", f"{wer} {tut}{ending} {wann} {was}"


@dataclass
class Languages:
    """How both sides become token ids: padding is 0, and 1 ends a sentence or, in the decoder, begins it."""

    english: WordTokenizer
    german: WordTokenizer

    @classmethod
    def of(cls, corpus: Iterable[tuple[str, str]]) -> Languages:
        """All words of a corpus, and those of every social security number."""
        secrets = SSN.source.covering(), SSN.target.covering()
        sides = zip(zip(*corpus, strict=True), secrets, strict=True)
        vocabularies = (WordTokenizer.from_text(*texts, *more).vocabulary for texts, more in sides)
        return cls(*(WordTokenizer(["<padding>", "<end>", *words]) for words in vocabularies))

    def source(self, text: str) -> list[int]:
        """An English sentence, with its end."""
        return [*self.english.encode(text), 1]

    def target(self, text: str) -> list[int]:
        """A German sentence, with its end."""
        return [*self.german.encode(text), 1]

    def example(self, english: str, german: str) -> tuple[Tensor, Tensor]:
        """A pair for training."""
        return torch.tensor(self.source(english)), torch.tensor(self.target(german))


def collate(examples: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
    """A batch, the shorter sentences filled up."""
    return tuple(pad_sequence(list(side), batch_first=True) for side in zip(*examples, strict=True))


def train(canaries: CanarySet, options: argparse.Namespace, seed: int) -> tuple[EncoderDecoder, Languages]:
    """A model that has seen the canaries."""
    generator = random.Random(seed)
    corpus, held_out = ([sentence(generator) for _ in range(size)] for size in (options.pairs, options.pairs // 10))
    languages = Languages.of(corpus + held_out)
    loaders = [
        DataLoader([languages.example(*pair) for pair in part], 32, shuffle=part is corpus, collate_fn=collate)
        for part in (corpus, held_out)
    ]
    data = CanaryDataModule(
        loaders[0],
        canaries,
        encode=lambda text: languages.example(SSN.source_of(text), text),
        seed=seed,
        val_dataloaders=loaders[1],
    )
    pl.seed_everything(seed)
    model = EncoderDecoder(
        vocab_size=languages.english.vocab_size,
        target_vocab_size=languages.german.vocab_size,
        hidden_size=options.hidden_size,
        embedding_size=options.hidden_size,
        lr=0.003,
    )
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(max_epochs=options.epochs, num_sanity_val_steps=0, **quiet)
    began = time.perf_counter()
    trainer.fit(model, data)
    losses = [float(trainer.callback_metrics[name]) for name in ("train_loss_epoch", "val_loss")]
    print(
        f"seed {seed}: {options.pairs:,} pairs and {sum(data.ledger[0].values())} copies of canaries, {options.epochs} "
        f"epochs in {time.perf_counter() - began:.0f} s, loss {losses[0]:.3f}, on new sentences {losses[1]:.3f}"
    )
    return model, languages


def with_last_digits_unknown(secret: str) -> TiedFormats:
    """The secrets that differ from one in the last three digits only."""
    known = " ".join(secret.split()[-11:-3])
    return TiedFormats(*(SecretFormat(f"{prompt} {known} # # #") for prompt in PROMPTS))


def measure(model: EncoderDecoder, languages: Languages, canaries: CanarySet, samples: int) -> list[dict[str, float]]:
    """Every way to ask how exposed each canary is."""
    ways = {"encode_source": languages.source, "encode_target": languages.target}
    rows: list[dict[str, float]] = [{} for _ in canaries]
    for name, method in (("sampling", "sampling"), ("skew-normal", "skewnormal")):
        found = measure_tied_exposure(model, SSN, canaries.texts, method=method, samples=samples, **ways)
        for row, estimate in zip(rows, found, strict=True):
            row[name] = min(estimate.bits, estimate.size_bits)  # a skew-normal may say more than there is
            row["at the limit"] = row.get("at the limit", 0.0) + estimate.is_bound
    for row, canary in zip(rows, canaries, strict=True):
        last = with_last_digits_unknown(canary.text)
        for name, method in (("last 3 exact", "exact"), ("last 3 skew-n.", "skewnormal")):
            (estimate,) = measure_tied_exposure(model, last, [canary.text], method=method, **ways)
            row[name] = min(estimate.bits, estimate.size_bits)
        own = tree(model, languages, SSN.source_of(canary.text))
        (estimate,) = measure_exposure(own, [canary.text], budget=20_000)
        row["own source"] = estimate.bits
    without = tree(model, languages, PROMPTS[0])
    for row, estimate in zip(rows, measure_exposure(without, canaries.texts, budget=20_000), strict=True):
        row["no number"] = estimate.bits
    return rows


def tree(model: EncoderDecoder, languages: Languages, source: str) -> SecretTree:
    """All targets, for one source."""
    return SecretTree(Seq2SeqAdapter(model, languages.source(source)), SSN.target, languages.german)


def print_table(rows: Sequence[tuple[Canary, dict[str, float]]]) -> None:
    """The mean exposure for each number of insertions."""
    names = ("sampling", "skew-normal", "last 3 exact", "last 3 skew-n.", "no number", "own source")
    print(f"\nMean exposure in bits (of {SSN.bits:.1f}; for the last 3 digits, of {math.log2(1000):.1f})")
    print("inserted  canaries  at limit  " + "  ".join(f"{name:>14}" for name in names))
    for count in INSERTIONS:
        chosen = [row for canary, row in rows if canary.repetitions == count]
        limit = sum(row["at the limit"] for row in chosen)
        values = "  ".join(f"{mean(row[name] for row in chosen):14.2f}" for name in names)
        print(f"{count:8}  {len(chosen):8}  {limit:8.0f}  {values}")


def main() -> None:
    """Train, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="a small model and corpus, in seconds")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], help="one training run each (default: 0 1 2)"
    )
    parser.add_argument("--pairs", type=int, default=4000, help="pairs of sentences (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--hidden_size", type=int, default=96, help="units of the LSTMs (default: %(default)s)")
    parser.add_argument("--canaries", type=int, default=8, help="for each number of insertions (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=16_384, help="pairs to compare with (default: %(default)s)")
    options = parser.parse_args()
    if options.fast:
        options.seeds, options.pairs, options.epochs = options.seeds[:1], 400, 4
        options.hidden_size, options.canaries, options.samples = 24, 1, 500
    torch.set_num_threads(1)  # models this small are read fastest by one thread
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in ("The '\\w+_dataloader' does not have many workers", ".*LeafSpec"):
        warnings.filterwarnings("ignore", message=message)
    # That skew-normals fit badly here is what the table shows.
    warnings.filterwarnings("ignore", category=PoorFitWarning)
    warnings.filterwarnings("ignore", message="The occurrence of roundoff error")

    rows: list[tuple[Canary, dict[str, float]]] = []
    for seed in options.seeds:
        repetitions = [count for count in INSERTIONS for _ in range(options.canaries)]
        canaries = CanarySet.draw(SSN.target, repetitions=repetitions, seed=seed)
        model, languages = train(canaries, options, seed)
        began = time.perf_counter()
        rows += zip(canaries, measure(model, languages, canaries, options.samples), strict=True)
        print(f"seed {seed}: measured in {time.perf_counter() - began:.0f} s")
    print_table(rows)


if __name__ == "__main__":
    main()
