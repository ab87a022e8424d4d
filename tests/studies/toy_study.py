"""Studies whose trainings take no time, for tests of the engine; registered when this file is imported."""

from __future__ import annotations

import os
import random
import signal
import time

from lightning_exposure.studies.study import STUDIES, Cell, Column, Row, Scale, Study, product

LOG = "TOY_STUDY_LOG"
"""A file that every training adds a line to, in the environment."""

PAUSE = "TOY_STUDY_PAUSE"
"""How many seconds a training takes, in the environment."""


def train(cell: Cell) -> Row:
    with open(os.environ[LOG], "a", encoding="utf-8") as log:
        log.write(f"{cell.settings['size']} {cell.seed} {os.getpid()}\n")
    time.sleep(float(os.environ.get(PAUSE, "0")))
    numbers = random.Random(cell.random_seed)
    return {
        "loss": numbers.random() / cell.settings["size"],
        "found": numbers.random() < 0.5,
        "letters": len(cell.text),
    }


def fail_sometimes(cell: Cell) -> Row:
    kind = cell.settings["kind"]
    if kind == "raises":
        raise ValueError("the loss\nis a potato")
    if kind == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "diverges":
        return {"loss": float("nan")}
    if kind == "forgets":
        return {"los": 1.0}
    return {"loss": 0.5}


def several_rows(cell: Cell) -> list[Row]:
    return [{"epoch": epoch, "loss": cell.random_seed / epoch} for epoch in (1, 2, 3)]


SHARED = {"characters": 4}

if "toy" not in STUDIES:
    STUDIES.register("toy")(
        Study(
            title="A toy",
            source="Nobody, Table 0",
            claim="Nothing follows.",
            scales={
                "tiny": Scale(SHARED, product(size=[1, 2, 3]), seeds=2, cost="nothing"),
                "cpu": Scale({"characters": 8}, product(size=[1, 2]), seeds=1, cost="nothing"),
            },
            train=train,
            results=(Column("loss", digits=3), Column("found", "share"), Column("letters", "leave out")),
        )
    )
    STUDIES.register("toy-failing")(
        Study(
            title="A toy that breaks",
            source="Nobody, Table 1",
            claim="Nothing works.",
            scales={
                "tiny": Scale(
                    {}, product(kind=["works", "raises", "dies", "diverges", "forgets", "works too"]), seeds=1, cost=""
                )
            },
            train=fail_sometimes,
            results=(Column("loss"),),
        )
    )
    STUDIES.register("toy-epochs")(
        Study(
            title="A toy of several rows",
            source="Nobody, Table 2",
            claim="Rows have epochs.",
            scales={"tiny": Scale({}, [{}], seeds=2, cost="")},
            train=several_rows,
            keys=("epoch",),
            results=(Column("loss"),),
        )
    )
    STUDIES.register("toy-ddp")(
        Study(
            title="A toy with DDP inside",
            source="Nobody, Table 3",
            claim="It must not run.",
            scales={"tiny": Scale({"trainer": {"strategy": "ddp"}}, [{}], seeds=1, cost="")},
            train=train,
            results=(Column("loss"),),
        )
    )
