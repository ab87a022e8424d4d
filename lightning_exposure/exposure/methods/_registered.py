"""The registry of exposure methods: each is one file that registers itself here.

A method is a function of a `TreeCase`: secrets that have been scored, and how to measure them. It gives one estimate
for each of them, in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from lightning_exposure._registry import Registry
from lightning_exposure.exposure._case import TreeCase
from lightning_exposure.exposure._result import ExposureEstimate

MethodName = Literal["auto", "exact", "importance", "sampling", "skewnormal"]
"""The methods that come with the library."""

Method = Callable[[TreeCase], list[ExposureEstimate]]

METHODS: Registry[Method] = Registry("method")
"""What `measure_exposure` can do, by name."""
