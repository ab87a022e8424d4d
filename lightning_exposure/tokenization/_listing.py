"""All secrets of a small format, each as the tokenizer itself spells it: a tree that needs no theory of tokenizers.

Used where the theory does not hold: added tokens that swallow spaces which secrets differ in, normalizers that see
what stands between two added tokens by itself, and whatever else a tokenizer may do.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_exposure.errors import TokenizerError
from lightning_exposure.tokenization._tree_start import positions_of, shared_tokens
from lightning_exposure.tokenization.graphs.tokens import TokenAutomaton
from lightning_exposure.tokenization.protocol import Tokenizer, surroundings_of


class Listing:
    """Secrets and their tokens.

    Args:
        tokenizer: What spelled them.
        secrets: The secrets, all different.
        spelled: The tokens of each.
        known: What all of them begin with.

    Attributes:
        root: The tokens that all begin with, as far as they belong to what is known.
        root_text: The text of the root.
        automaton: Exactly the paths from the root to the secrets.
        largest_token: The largest token id.

    Raises:
        TokenizerError: Two secrets have the same tokens, or nothing is left to read before the first blank.
    """

    def __init__(self, tokenizer: Tokenizer, secrets: Sequence[str], spelled: Sequence[list[int]], known: str) -> None:
        self._tokenizer, self._spelled = tokenizer, dict(zip(secrets, spelled, strict=True))
        self._texts: dict[tuple[int, ...], str] = {}
        for secret, tokens in self._spelled.items():
            other = self._texts.setdefault(tuple(tokens), secret)
            if other != secret:
                raise TokenizerError(
                    f"the tokenizer spells the secrets {other!r} and {secret!r} alike, as {tokens}: a model cannot "
                    "tell them apart. Use a format whose secrets differ in more than what the tokenizer drops (case, "
                    "spaces, characters that it lacks)."
                )
        self.largest_token = max(map(max, spelled))
        count, self.root_text = self._common(known)
        self.root = spelled[0][:count]
        self.automaton = TokenAutomaton.of_paths([tokens[count:] for tokens in spelled])

    def text(self, path: Sequence[int]) -> str:
        """The secret at the end of a path from the root; for a part of a path what its tokens decode to."""
        tokens = [*self.root, *path]
        return self._texts.get(tuple(tokens)) or self._tokenizer.decode(tokens)

    def starting_with(self, known: str) -> Listing:
        """The same for only those secrets that begin with a known text."""
        part = {secret: tokens for secret, tokens in self._spelled.items() if secret.startswith(known)}
        return Listing(self._tokenizer, list(part), list(part.values()), known)

    def _common(self, known: str) -> tuple[int, str]:
        """How many tokens all secrets begin with, within what is known, and the text of those."""
        before = len(surroundings_of(self._tokenizer).before)
        spelled = list(self._spelled.values())
        shared = shared_tokens(spelled)
        first = next(iter(self._spelled))
        fitting = [
            (count, position - before)
            for count, position in enumerate(positions_of(self._tokenizer, first, shared))
            if count and position is not None and position - before <= len(known)
        ]
        if not fitting:
            raise TokenizerError(
                f"no token is the same for all secrets that begin with {known!r}; the model needs something to read "
                "before the first blank. Begin the pattern with the text that comes before the secret in the training "
                "data."
            )
        count, position = fitting[-1]
        return count, known[: max(0, position)]
