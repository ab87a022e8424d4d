"""Runs pages, and writes down what they print.

python -m tests.docs docs/page.md [--write] [--pictures DIRECTORY]
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.docs.blocks import Block, blocks_of
from tests.docs.running import Page
from tests.docs.surroundings import untouched


def written(text: str, printed: dict[int, str]) -> str:
    """A page with other `text` blocks, by the line on which each begins."""
    lines = text.split("\n")
    for start, new in sorted(printed.items(), reverse=True):
        end = next(at for at in range(start - 1, len(lines)) if lines[at].startswith("```"))
        lines[start - 1 : end] = new.rstrip("\n").split("\n")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--pictures", type=Path, help="put the pictures that the page draws in there")
    arguments = parser.parse_args()
    pictures = arguments.pictures and arguments.pictures.resolve()
    for page in (path.resolve() for path in arguments.pages):
        printed: dict[int, str] = {}
        begin = time.monotonic()

        def keep(block: Block, text: str, printed: dict[int, str] = printed) -> None:
            if "..." not in block.code.splitlines():
                printed[block.line] = text

        with tempfile.TemporaryDirectory() as folder, untouched(Path(folder)):
            Page(page, Path(folder), keep if arguments.write else None).run()
            if pictures:
                pictures.mkdir(parents=True, exist_ok=True)
                for picture in Path(folder).glob("*.png"):
                    shutil.copy(picture, pictures)
        if arguments.write:
            page.write_text(written(page.read_text(encoding="utf-8"), printed), encoding="utf-8")
        print(f"{page.name}: {len(blocks_of(page))} blocks in {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
