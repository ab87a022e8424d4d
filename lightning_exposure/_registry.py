"""Registries: a new attack, exposure method, model adapter or named format is one file that registers itself.

Whoever needs the list (a callback, the command line, an error message) asks the registry, so that an entry of a user
is treated as one of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar, cast

from lightning_exposure._checks import choice, refusal

T = TypeVar("T")
E = TypeVar("E")


class Registry(Generic[T]):
    """Entries by name, those of the highest priority first, then in the order of their names.

    The order follows from what is declared alone: it does not matter which file was imported first.

    Args:
        kind: What an entry is, and the argument that names one, for error messages.

    Example:
        >>> greetings: Registry[str] = Registry("greeting")
        >>> _ = greetings.register("formal")("Good morning")
        >>> _ = greetings.register("casual", priority=1)("Hi")
        >>> greetings.names(), greetings.get("formal"), list(greetings)
        (('casual', 'formal'), 'Good morning', ['Hi', 'Good morning'])
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, tuple[int, T]] = {}

    def register(self, name: str, *, priority: int = 0) -> Callable[[E], E]:
        """Decorate a class or a function to make it an entry; it is returned as it is, with its own type.

        Args:
            name: What the entry is asked for by.
            priority: Entries with a higher one come first.

        Raises:
            ArgumentError: Another entry has this name.
        """

        def add(entry: E) -> E:
            if name in self._entries:
                taken = f"a new name, because {self._entries[name][1]!r} is registered under this one"
                raise refusal(self.kind, name, taken, f"Choose another one, or call unregister({name!r}) first.")
            self._entries[name] = (priority, cast(T, entry))
            return entry

        return add

    def unregister(self, name: str) -> T:
        """Remove an entry and return it."""
        entry = self.get(name)
        del self._entries[name]
        return entry

    def get(self, name: str, *, argument: str | None = None) -> T:
        """The entry of a name.

        Args:
            name: The name.
            argument: How the caller's own argument is called, for the error message.

        Raises:
            ArgumentError: There is none; the message names those there are.
        """
        called, remedy = argument or self.kind, f"A new {self.kind} is registered with register(...)."
        if not self._entries:
            raise refusal(called, name, "nothing, because none is registered", remedy)
        return self._entries[choice(called, name, self.names(), remedy=remedy)][1]

    def names(self) -> tuple[str, ...]:
        """The names of all entries, in order."""
        return tuple(sorted(self._entries, key=lambda name: (-self._entries[name][0], name)))

    def __iter__(self) -> Iterator[T]:
        """All entries, in order."""
        return iter([self._entries[name][1] for name in self.names()])

    def __contains__(self, name: object) -> bool:
        """Whether there is an entry of this name."""
        return name in self._entries

    def __len__(self) -> int:
        """How many entries there are."""
        return len(self._entries)
