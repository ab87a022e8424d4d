"""From a regular expression of finitely many texts to its smallest acceptor.

What the expression means is left to `interegular`. What comes out is checked here: finite, not empty, every character
named; and every edge of it against Python's own `re`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_exposure._checks import refusal
from lightning_exposure.errors import FormatError
from lightning_exposure.secrets.formats._counting import Counting
from lightning_exposure.secrets.formats.acceptor import Acceptor

_Edges = dict[int, dict[str, int]]

_NOT_REGULAR = {
    "(?=": "looks ahead",
    "(?!": "looks ahead",
    "(?<=": "looks back",
    "(?<!": "looks back",
    "(?P=": "refers to a group",
    "(?(": "depends on a group",
}
_ESCAPES = {"b": "asks for the edge of a word", "B": "asks for the edge of a word", "A": "is an anchor"}
_ESCAPES |= {"Z": "is an anchor", **dict.fromkeys("123456789", "refers to a group")}
_CHARACTER = re.compile(r"\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\.|\[|\]|\(\?[=!P<(]?[=!]?|.", re.DOTALL)


def acceptor_of(expression: str) -> Acceptor:
    """Return the smallest acceptor of all the texts that an expression matches as a whole.

    Raises:
        FormatError: It is no expression, or one of infinitely many texts, of none, or of a single one.
    """
    if not isinstance(expression, str):
        raise refusal("regex", expression, "a string such as r'my pin is [0-9]{4}'", error=FormatError, with_type=True)
    try:
        whole = re.compile(expression)
    except re.error as error:
        raise _refusal(expression, f"is no regular expression ({error})", "correct it") from error
    edges, accepting = _automaton(expression, _plain(expression))
    if 0 not in edges:
        raise _refusal(expression, "matches no text at all", "leave out what contradicts itself")
    _refuse_cycles(expression, edges)
    acceptor = _smallest(edges, accepting)
    counting = Counting(acceptor)
    if counting.size == 1:
        raise _refusal(expression, f"matches {counting.text_of(0)!r} alone: there is nothing to fill in", "add a class")
    for text in counting.covering():
        if whole.fullmatch(text) is None:
            raise _refusal(expression, f"is read in two ways: {text!r} fits or not", "write it in a simpler way")
    return acceptor


def _plain(expression: str) -> str:
    """The expression without what matching it as a whole makes superfluous, and with escapes written out.

    Raises:
        FormatError: It asks for more than a regular language has.
    """
    pieces: list[str] = []
    in_class = False
    for match in _CHARACTER.finditer(expression):
        piece = match[0]
        if match[1] or match[2]:
            piece = re.escape(chr(int(match[1] or match[2], 16)))
        elif piece.startswith("\\"):
            if not in_class and piece[1] in _ESCAPES:
                raise _refusal(expression, f"{_ESCAPES[piece[1]]} ({piece})", "list what may stand there instead")
        elif in_class:
            # A bracket that comes first in a class stands for itself, and so does one that would open a class.
            first = pieces[-1] == "[" or pieces[-2:] == ["[", "^"]
            in_class = piece != "]" or first
            if piece in ("[", "]") and in_class:
                piece = "\\" + piece
        elif piece == "[":
            in_class = True
        elif piece in _NOT_REGULAR:
            raise _refusal(expression, f"{_NOT_REGULAR[piece]} ({piece}...)", "list what may stand there instead")
        pieces.append(piece)
    if pieces[:1] == ["^"]:
        pieces = pieces[1:]
    if pieces[-1:] == ["$"]:
        pieces = pieces[:-1]
    return "".join(pieces)


def _automaton(expression: str, plain: str) -> tuple[_Edges, set[int]]:
    """The states that lead from the start (0) to an end, their edges, and where a text may end."""
    import interegular  # needed by whoever makes such a format, and by nobody else

    try:
        machine = interegular.parse_pattern(plain).to_fsm()
    except Exception as error:  # whatever it lacks, it says in errors of many kinds
        reason = f"cannot be made an automaton ({error or type(error).__name__})"
        raise _refusal(expression, reason, "write it in a simpler way") from error
    finals, initial = set(machine.finals), machine.initial
    alive = _leading_to(machine.map, finals)
    edges: _Edges = {}
    for state in _reachable(machine.map, initial, alive):
        outgoing: dict[str, int] = {}
        for symbol, target in machine.map.get(state, {}).items():
            if target not in alive:
                continue
            for character in machine.alphabet.by_transition[symbol]:
                if not isinstance(character, str):
                    raise _refusal(
                        expression,
                        "has a place for any character but some ('.', '[^...]', '\\D', '\\W' or '\\S')",
                        "name the characters: [a-z0-9]",
                    )
                outgoing[character] = target
        edges[state] = outgoing
    number = {state: place for place, state in enumerate(edges)}
    renumbered = {
        number[state]: {character: number[target] for character, target in outgoing.items()}
        for state, outgoing in edges.items()
    }
    return renumbered, {number[state] for state in finals if state in number}


def _leading_to(transitions: Mapping[Any, Mapping[Any, Any]], finals: set[Any]) -> set[Any]:
    """The states from which an end can be reached."""
    before: dict[Any, set[Any]] = {}
    for state, outgoing in transitions.items():
        for target in outgoing.values():
            before.setdefault(target, set()).add(state)
    alive, queue = set(finals), deque(finals)
    while queue:
        for state in before.get(queue.popleft(), set()) - alive:
            alive.add(state)
            queue.append(state)
    return alive


def _reachable(transitions: Mapping[Any, Mapping[Any, Any]], start: Any, alive: set[Any]) -> list[Any]:
    """The states that can be reached, the start first, and that lead to an end."""
    if start not in alive:
        return []
    found = dict.fromkeys([start])
    queue = deque([start])
    while queue:
        for target in transitions.get(queue.popleft(), {}).values():
            if target in alive and target not in found:
                found[target] = None
                queue.append(target)
    return list(found)


def _refuse_cycles(expression: str, edges: _Edges) -> None:
    """Whoever can come back to a state can do so again and again."""
    left = dict.fromkeys(edges, 0)
    for outgoing in edges.values():
        for target in outgoing.values():
            left[target] += 1
    queue = deque(state for state, count in left.items() if count == 0)
    seen = 0
    while queue:
        seen += 1
        for target in edges[queue.popleft()].values():
            left[target] -= 1
            if left[target] == 0:
                queue.append(target)
    if seen < len(edges):
        raise _refusal(expression, "matches infinitely many texts", "say how often at most: {0,8} for *, {1,8} for +")


def _smallest(edges: _Edges, accepting: set[int]) -> Acceptor:
    """States behind which the same may follow become one; then all are numbered in the order of their first texts."""
    merged: dict[int, int] = {}
    known: dict[tuple[bool, tuple[tuple[str, int], ...]], int] = {}
    stack = [0]
    while stack:
        state = stack[-1]
        missing = [target for target in edges[state].values() if target not in merged]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        outgoing = tuple(sorted((character, merged[target]) for character, target in edges[state].items()))
        merged[state] = known.setdefault((state in accepting, outgoing), len(known))
    return _numbered(list(known), merged[0])


def _numbered(states: Sequence[tuple[bool, tuple[tuple[str, int], ...]]], start: int) -> Acceptor:
    order, number = [start], {start: 0}
    for state in order:  # grows while it is walked
        for _, target in states[state][1]:
            if target not in number:
                number[target] = len(order)
                order.append(target)
    edges = [{character: number[target] for character, target in states[state][1]} for state in order]
    return Acceptor(edges, [states[state][0] for state in order])


def _refusal(expression: str, problem: str, remedy: str) -> FormatError:
    return FormatError(
        f"regex is {expression!r}, which {problem}; expected a regular expression of finitely many texts, and at least "
        f"two. {remedy[:1].upper()}{remedy[1:]}."
    )
