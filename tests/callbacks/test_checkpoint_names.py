"""`ModelCheckpoint` on metrics with a slash in their names: a file, and no directory."""

from __future__ import annotations

import re
from pathlib import Path

from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_exposure import ExposureCallback
from tests.callbacks.setups import CANARIES, CHARS, Model, loader, trainer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"


def checkpoints(folder: Path, keeping: ModelCheckpoint) -> list[str]:
    keeping.dirpath = str(folder / "kept")
    callbacks = [ExposureCallback(CANARIES, CHARS), keeping]
    trainer(folder, *callbacks, max_epochs=2, enable_checkpointing=True).fit(Model(), loader())
    return sorted(str(path.relative_to(folder / "kept")) for path in (folder / "kept").rglob("*.ckpt"))


def test_the_recipe_of_the_page_makes_files(tmp_path: Path) -> None:
    code = re.search(r"```python\n([^`]*ModelCheckpoint\([^`]*)```", PAGE.read_text(encoding="utf-8"))
    assert code is not None
    names: dict[str, ModelCheckpoint] = {}
    exec(code[1], names)
    kept = checkpoints(tmp_path, names["keep"])
    assert len(kept) == 1
    assert re.fullmatch(r"epoch=\d-exposure=\d+\.\d\d\.ckpt", kept[0])


def test_lightnings_own_default_name_makes_a_file(tmp_path: Path) -> None:
    (kept,) = checkpoints(tmp_path, ModelCheckpoint(monitor="exposure_low/max", mode="min"))
    assert "/" not in kept


def test_the_name_of_a_metric_in_the_template_would_make_a_directory(tmp_path: Path) -> None:
    # What the page warns of: if this fails, Lightning has changed, and the page can be shortened.
    keeping = ModelCheckpoint(monitor="exposure_low/max", mode="min", filename="{epoch}-{exposure_low/max:.2f}")
    assert "/" in checkpoints(tmp_path, keeping)[0]
