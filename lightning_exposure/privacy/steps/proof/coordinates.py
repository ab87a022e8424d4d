"""Some numbers of every parameter, always the same ones: what is looked at in the place of copies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

LIMIT = 2**15
"""About how many numbers of the trainable parameters are looked at, and of the frozen ones."""

_LEAST = 32
"""How many numbers of every parameter are looked at, at least, if it has as many."""


class Coordinates:
    """Places in parameters: all of them in a small model, a random sample in a large one.

    The first places of every parameter are always among them, in their order, so that parameters can be compared.

    Args:
        parameters: By name.
        generator: Where the sample comes from; nobody else's.
        limit: About how many there are of those that want gradients, and of the others.

    Attributes:
        sizes: How many places each parameter has.

    Example:
        >>> small = Coordinates({"a": torch.zeros(3), "b": torch.zeros(2, 2)})
        >>> small.of({"a": torch.arange(3.0), "b": torch.ones(2, 2)}).tolist()
        [0.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0]
        >>> large = Coordinates({"a": torch.zeros(1000, 1000)}, limit=100)
        >>> large.sizes, large.are_all("a")
        ({'a': 100}, False)
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], generator: torch.Generator | None = None, *, limit: int = LIMIT
    ) -> None:
        numbers = {name: value.numel() for name, value in parameters.items()}
        total = {True: 0, False: 0}
        for name, value in parameters.items():
            total[value.requires_grad] += numbers[name]
        self._places: dict[str, Tensor | None] = {}
        self.sizes: dict[str, int] = {}
        for name, value in parameters.items():
            among, size = total[value.requires_grad], numbers[name]
            wanted = max(_LEAST, size * limit // max(1, among))
            every = among <= limit or wanted >= size
            self._places[name] = None if every else _sample(size, wanted, generator)
            self.sizes[name] = size if every else wanted

    def are_all(self, name: str) -> bool:
        """Whether nothing of a parameter is left out."""
        return self._places[name] is None

    def of_one(self, name: str, value: Tensor) -> Tensor:
        """The numbers of one parameter, in a row, on its device; a copy."""
        flat = value.detach().reshape(-1)
        places = self._places[name]
        if places is None:
            return flat.clone()
        if places.device != flat.device:
            self._places[name] = places = places.to(flat.device)
        return flat[places]

    def of(self, values: Mapping[str, Tensor]) -> Tensor:
        """The numbers of some parameters in a row, in double precision on the CPU."""
        return self.of_parts({name: self.of_one(name, values[name]) for name in self.sizes if name in values})

    def of_parts(self, numbers: Mapping[str, Tensor]) -> Tensor:
        """The same of what `of_one` has given for each."""
        parts = [numbers[name].double().cpu() for name in self.sizes if name in numbers]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def slices(self, names: Iterable[str]) -> dict[str, slice]:
        """Where `of` has the numbers of each of some parameters."""
        wanted, begin = set(names), 0
        found = {}
        for name, size in self.sizes.items():
            if name in wanted:
                found[name] = slice(begin, begin + size)
                begin += size
        return found


def _sample(size: int, wanted: int, generator: torch.Generator | None) -> Tensor:
    """Distinct places: the first few, and one in each of many stretches of what follows."""
    first = torch.arange(min(_LEAST, wanted))
    rest = wanted - len(first)
    edges = torch.linspace(len(first), size, rest + 1, dtype=torch.float64).long()
    luck = torch.rand(rest, generator=generator or torch.Generator(), dtype=torch.float64)
    return torch.cat([first, edges[:-1] + (luck * (edges[1:] - edges[:-1])).long()])
