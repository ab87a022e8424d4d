"""Is a number exposed that a translation model has seen on both sides? Carlini et al., Table 6."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from lightning_exposure.adapters import Seq2SeqAdapter
from lightning_exposure.data import CanaryDataModule
from lightning_exposure.exposure import measure_exposure, measure_tied_exposure
from lightning_exposure.modules import EncoderDecoder
from lightning_exposure.secrets import CanarySet, SecretFormat, TiedFormats
from lightning_exposure.studies.comparing import correlated, paired, sentences
from lightning_exposure.studies.figures import curves_figure, to_float
from lightning_exposure.studies.study import STUDIES, Cell, Column, PaperTable, Row, Scale, Study
from lightning_exposure.studies.training import TRAINER
from lightning_exposure.tokenization import WordTokenizer
from lightning_exposure.tree import SecretTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    (who, wer, ending), (does, tut) = generator.choice(WHO), generator.choice(DOES)
    (what, was), (when, wann) = generator.choice(WHAT), generator.choice(WHEN)
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


@dataclass
class FittedTranslator:
    """A model that has seen canaries, and what is known of its training.

    Attributes:
        model: The model.
        languages: How it reads.
        copies: How many copies of canaries there were among the pairs.
        train_loss: In nats per token.
        test_loss: Of sentences that were not trained on.
    """

    model: EncoderDecoder
    languages: Languages
    copies: int
    train_loss: float
    test_loss: float


def fit_translator(
    canaries: CanarySet, *, pairs: int, epochs: int, hidden_size: int, seed: int, **trainer: Any
) -> FittedTranslator:
    """Train on made-up pairs of sentences, with the canaries among them."""
    generator = random.Random(seed)
    corpus, held_out = ([sentence(generator) for _ in range(size)] for size in (pairs, pairs // 10))
    languages = Languages.of(corpus + held_out)
    order = torch.Generator().manual_seed(seed)
    loaders: list[DataLoader[Any]] = [
        DataLoader(
            [languages.example(*pair) for pair in part],  # type: ignore[arg-type]
            32,
            shuffle=part is corpus,
            collate_fn=collate,
            generator=order,
        )
        for part in (corpus, held_out)
    ]
    data = CanaryDataModule(
        loaders[0],
        canaries,
        encode=lambda text: languages.example(SSN.source_of(text), text),
        seed=seed,
        val_dataloaders=loaders[1],
    )
    torch.manual_seed(seed)
    model = EncoderDecoder(
        vocab_size=languages.english.vocab_size,
        target_vocab_size=languages.german.vocab_size,
        hidden_size=hidden_size,
        embedding_size=hidden_size,
        lr=0.003,
    )
    fitted = pl.Trainer(max_epochs=epochs, **{**TRAINER, **trainer})
    fitted.fit(model, data)
    losses = [float(fitted.callback_metrics[name]) for name in ("train_loss_epoch", "val_loss")]
    return FittedTranslator(model, languages, sum(data.ledger[0].values()), *losses)


def with_last_digits_unknown(secret: str) -> TiedFormats:
    """The secrets that differ from one in the last three digits only."""
    known = " ".join(secret.split()[-11:-3])
    return TiedFormats(*(SecretFormat(f"{prompt} {known} # # #") for prompt in PROMPTS))


def measure_translator(
    model: EncoderDecoder, languages: Languages, canaries: CanarySet, samples: int
) -> list[dict[str, float]]:
    """Every way to ask how exposed each canary is."""
    ways: dict[str, Any] = {"encode_source": languages.source, "encode_target": languages.target}
    rows: list[dict[str, float]] = [{} for _ in canaries]
    for name, method in (("sampling", "sampling"), ("skew-normal", "skewnormal")):
        found = measure_tied_exposure(model, SSN, canaries.texts, method=method, samples=samples, **ways)
        for row, estimate in zip(rows, found, strict=True):
            row[name] = estimate.bits  # a skew-normal may say more than there is
            if name == "sampling":
                row["at least"] = float(estimate.is_bound)
    for row, canary in zip(rows, canaries, strict=True):
        last = with_last_digits_unknown(canary.text)
        for name, method in (("last 3 exact", "exact"), ("last 3 skew-n.", "skewnormal")):
            (estimate,) = measure_tied_exposure(model, last, [canary.text], method=method, **ways)
            row[name] = estimate.bits
            if method == "exact":
                row["last 3 first"] = float(estimate.rank == 1)
                row["last 3 margin"] = math.nan if estimate.margin_bits is None else estimate.margin_bits
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


WAYS = {
    "sampling_bits": "sampling",
    "sampling_is_bound": "at least",
    "skewnormal_bits": "skew-normal",
    "last_3_exact_bits": "last 3 exact",
    "last_3_first": "last 3 first",
    "last_3_margin_bits": "last 3 margin",
    "last_3_skewnormal_bits": "last 3 skew-n.",
    "no_number_bits": "no number",
    "own_source_bits": "own source",
}


def train(cell: Cell) -> list[Row]:
    """One translator; a row for each number of insertions, with means over its canaries."""
    settings = cell.settings
    repetitions = [count for count in settings["insertions"] for _ in range(settings["canaries"])]
    canaries = CanarySet.draw(SSN.target, repetitions=repetitions, seed=cell.secret_seed)
    sizes = {name: settings[name] for name in ("pairs", "epochs", "hidden_size")}
    made = fit_translator(canaries, seed=cell.random_seed, **sizes, **settings.get("trainer", {}))
    found = measure_translator(made.model, made.languages, canaries, settings["samples"])
    rows: list[Row] = []
    for count in settings["insertions"]:
        chosen = [row for row, canary in zip(found, canaries, strict=True) if canary.repetitions == count]
        # Only what is first has a margin: the mean is over those, and there is none where nothing is first.
        known = {column: [row[way] for row in chosen if not math.isnan(row[way])] for column, way in WAYS.items()}
        means = {column: mean(values) if values else None for column, values in known.items()}
        losses = {"train_loss": made.train_loss, "test_loss": made.test_loss}
        rows.append({"insertions": count, "asked": len(chosen), **losses, **means})
    return rows


def findings(rows: Sequence[Row]) -> list[str]:
    """Step by step and over all of them: do more insertions expose more? By sampling, whose numbers may be bounds."""
    counts = sorted({int(to_float(row["insertions"])) for row in rows})
    steps = [
        paired(
            f"Insertions, {more} instead of {fewer}",
            rows,
            "sampling_bits",
            {"insertions": more},
            {"insertions": fewer},
        )
        for fewer, more in pairwise(counts)
    ]
    inserted = [row for row in rows if row["insertions"]]
    return sentences(
        [*steps, correlated("Exposure against insertions, from one on", inserted, "insertions", "sampling_bits")]
    )


def draw(rows: Sequence[Row], summary: Sequence[Row]) -> Figure:
    """Exposure against insertions, asked in several ways."""
    whole = {
        "sampling_bits": "sampling, at least",
        "skewnormal_bits": "skew-normal",
        "last_3_exact_bits": "last 3 digits, exact",
    }
    return curves_figure(
        summary, "insertions", [("exposure in bits", whole)], title="Numbers that a translator has seen",
        xlabel="insertions",
    )  # fmt: skip


def _column(name: str) -> Column:
    if name in ("last_3_first", "sampling_is_bound"):
        return Column(name, "share", share_of="asked")
    if name == "last_3_margin_bits" or "skewnormal" in name:
        return Column(name, least=0)
    return Column(name, least=0, most=math.log2(1000) if name.startswith("last_3") else SSN.bits)


_SIZES = {"insertions": [0, 1, 2, 4], "canaries": 4, "pairs": 2000, "epochs": 8, "hidden_size": 64, "samples": 4096}

STUDIES.register("translation")(
    Study(
        title="Social security numbers in the training data of a translation model",
        source="Carlini et al., Table 6",
        claim="Inserted 1, 2 and 4 times, a number is exposed by 10, 21 and 33 bits; the last can be extracted.",
        scales={
            "tiny": Scale(
                {**_SIZES, "canaries": 1, "pairs": 64, "epochs": 1, "hidden_size": 8, "samples": 100, "characters": 0},
                [{}],
                seeds=1,
                cost="5 s of one core",
            ),
            "cpu": Scale({**_SIZES, "characters": 0}, [{}], seeds=6, cost="1.5 min of one core"),
            "paper": Scale(
                {
                    **_SIZES,
                    "canaries": 8,
                    "pairs": 100_000,
                    "epochs": 20,
                    "hidden_size": 512,
                    "samples": 65_536,
                    "characters": 0,
                    "trainer": {"accelerator": "auto"},
                },
                [{}],
                seeds=3,
                cost="a day of one GPU; the paper's own corpus is not at hand: sentences of our grammar, more of them",
            ),
        },
        train=train,
        keys=("insertions",),
        results=(
            Column("train_loss", digits=3),
            Column("test_loss", digits=3),
            Column("asked", "leave out"),
            *(_column(name) for name in WAYS),
        ),
        findings=findings,
        draw=draw,
        paper=(
            PaperTable(
                "Carlini et al., Table 6",
                ("insertions", "exposure"),
                (("1", "10"), ("2", "21"), ("4", "33 (extracted)")),
            ),
        ),
    )
)
