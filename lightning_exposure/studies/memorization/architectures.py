"""Do all architectures memorize? Carlini et al., Table 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightning_exposure.modules import LanguageModel
from lightning_exposure.studies._scales import cpu, paper, tiny
from lightning_exposure.studies.comparing import above_chance, chosen, correlated, paired, sentences
from lightning_exposure.studies.figures import bar_figure
from lightning_exposure.studies.study import STUDIES, Cell, Column, PaperTable, Row, Scale, Study
from lightning_exposure.studies.training import EXPOSURE, LOSSES, draw_secrets, exposure_row, train_language_model
from lightning_exposure.tokenization import CharTokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LAYERS = {"gru": (1, 2), "lstm": (1, 2), "cnn": (1, 2, 4), "wavenet": (2, 4), "transformer": (2,)}


def train(cell: Cell) -> Row:
    """One architecture, as wide as the wanted number of parameters allows."""
    settings, canaries = cell.settings, draw_secrets(cell)
    architecture = {"architecture": settings["architecture"], "num_layers": settings["layers"]}
    given = {**settings["model"], **architecture, "lr": settings["lr"][settings["architecture"]]}
    # Learned positions would be a third of a small Transformer, and most of them beyond any window.
    given |= {"num_heads": settings.get("heads", 4), "positions": "sinusoidal"}
    symbols = CharTokenizer.from_text(cell.training_text, *canaries[0].format.covering(), " ").vocab_size
    units = width_for(settings["parameters"], symbols, given)
    trained = train_language_model(cell, canaries, model={**given, "hidden_size": units})
    parameters = sum(parameter.numel() for parameter in trained.model.parameters())
    found = exposure_row(trained, canaries[0].format, canaries[0].text, cell)
    return {"units": units, "parameters": parameters, **trained.losses, **found}


def width_for(parameters: int, symbols: int, model: Mapping[str, Any]) -> int:
    """The number of units, a multiple of the heads, with which a model comes closest to a number of parameters.

    >>> width_for(25_000, 60, {"architecture": "lstm", "num_layers": 1, "embedding_size": 16})
    63
    """
    step = model.get("num_heads", 4) if model["architecture"] == "transformer" else 1

    def size(units: int) -> int:
        made = LanguageModel(vocab_size=symbols, **{**model, "hidden_size": units})
        return sum(parameter.numel() for parameter in made.parameters())

    low, high = 1, 2
    while size(high * step) < parameters:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle * step) < parameters else (low, middle)
    return step * min((low, high), key=lambda units: abs(size(units * step) - parameters))


def findings(rows: Sequence[Row]) -> list[str]:
    """The paper's two claims, and whether what is learned better is memorized better."""
    # Of each place in the grid by itself: trainings of one seed share their secret, and are not independent.
    places = dict.fromkeys((row["architecture"], row["layers"]) for row in rows)
    return sentences(
        [
            paired("Test loss, recurrent ones against the others", rows, "test_loss", _recurrent, _other, "nats"),
            paired("Exposure, recurrent ones against the others", rows, "exposure_bits", _recurrent, _other),
            paired(
                "Exposure of GRU, LSTM and CNN, two layers instead of one",
                rows,
                "exposure_bits",
                lambda row: row["architecture"] in _DEEPENED and row["layers"] == 2,
                lambda row: row["architecture"] in _DEEPENED and row["layers"] == 1,
            ),
            correlated("Exposure against test loss, all trainings", rows, "test_loss", "exposure_bits"),
            *(
                above_chance(f"{name}, layers: {layers}", chosen(rows, {"architecture": name, "layers": layers}))
                for name, layers in places
            ),
        ]
    )


def _recurrent(row: Row) -> bool:
    return row["architecture"] in ("gru", "lstm")


def _other(row: Row) -> bool:
    return not _recurrent(row)


_DEEPENED = ("gru", "lstm", "cnn")


def draw(rows: Sequence[Row], summary: Sequence[Row]) -> Figure:
    """The exposure of each architecture."""
    named = [{**row, "layers": f"{row['layers']} layer{'' if row['layers'] == 1 else 's'}"} for row in summary]
    return bar_figure(
        named, ("architecture", "layers"), "exposure_bits", title="Exposure by architecture, at equal parameters",
        xlabel="exposure in bits",
    )  # fmt: skip


_GRID = tuple({"architecture": name, "layers": layers} for name, choices in _LAYERS.items() for layers in choices)
# A Transformer of this size learns three times as slowly as the others: after their 12 epochs its loss is 2.0.
_CPU_GRID = tuple({**place, "epochs": 40} if place["architecture"] == "transformer" else place for place in _GRID)
_RATES = {"gru": 0.01, "lstm": 0.01, "cnn": 0.003, "wavenet": 0.003, "transformer": 0.003}

STUDIES.register("architectures")(
    Study(
        title="Exposure by architecture, at equal parameters",
        source="Carlini et al., Table 1",
        claim="All architectures memorize; the recurrent ones have the lower test loss and the higher exposure.",
        scales={
            "tiny": Scale(tiny(parameters=1_500, lr=_RATES, heads=2), _GRID[::3], seeds=1, cost="4 s of one core"),
            "cpu": Scale(
                cpu(parameters=25_000, lr=_RATES, format="the random number is #####"),
                _CPU_GRID,
                seeds=5,
                cost="14 min of one core",
            ),
            "paper": Scale(
                paper(parameters=620_000, lr=dict.fromkeys(_RATES, 0.001)),
                _GRID,
                seeds=1,
                cost="a day of one GPU; give the Penn Treebank with --text",
            ),
        },
        train=train,
        results=(Column("units", digits=0), Column("parameters", digits=0), *LOSSES, *EXPOSURE),
        findings=findings,
        draw=draw,
        paper=(
            PaperTable(
                "Carlini et al., Table 1 (620K +/- 5K parameters each; above 29.9 bits extrapolated)",
                ("architecture", "layers", "units", "test loss", "exposure"),
                (
                    ("GRU", "1", "370", "1.18", "36"),
                    ("GRU", "2", "235", "1.18", "37"),
                    ("LSTM", "1", "320", "1.17", "38"),
                    ("LSTM", "2", "200", "1.16", "35"),
                    ("CNN", "1", "436", "1.29", "24"),
                    ("CNN", "2", "188", "1.28", "19"),
                    ("CNN", "4", "122", "1.25", "22"),
                    ("WaveNet", "2", "188", "1.24", "18"),
                    ("WaveNet", "4", "122", "1.25", "20"),
                ),
            ),
        ),
    )
)
