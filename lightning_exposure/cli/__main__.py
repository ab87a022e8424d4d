"""`python -m lightning_exposure.cli` is the same as `lightning-exposure`."""

from __future__ import annotations

import sys

from lightning_exposure.cli import main

if __name__ == "__main__":
    sys.exit(main())
