"""`sample_leaks`: write text with a model, and count which secrets of its training data appear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from lightning_exposure._checks import check_confidence, refusal, whole_number
from lightning_exposure.adapters.protocol import StepModel
from lightning_exposure.errors import ArgumentError
from lightning_exposure.leakage.counting import CanaryFinder, Finder, SampleTally, ScannerFinder, Training, count
from lightning_exposure.leakage.decoder import Decoder
from lightning_exposure.leakage.sampled import SampledLeaks
from lightning_exposure.leakage.writer import TextWriter
from lightning_exposure.secrets import Canary, CanarySet, Scanner
from lightning_exposure.tokenization.protocol import Tokenizer


def sample_leaks(
    model: nn.Module | StepModel,
    tokenizer: Tokenizer | Any,
    scanner_or_canaries: Scanner | CanarySet | Sequence[Canary],
    training: Training | None = None,
    *,
    samples: int = 1000,
    length: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    prompt: str | None = None,
    end: Sequence[int] | None = None,
    seed: int | torch.Generator = 0,
    batch_size: int = 256,
    context: int | None = None,
    confidence: float = 0.95,
    on_batch: Callable[[int, int], None] | None = None,
) -> SampledLeaks:
    """Write text, and count which secrets of the training data appear in it, per class.

    The unit of an interval is the sample: a text of up to `length` tokens behind the prompt. Samples are independent of
    each other, so that the share of them in which a secret appears has an exact (Clopper-Pearson) interval. A sample
    with two secrets counts once for each of them, once for each of their classes, and once in all. Each sample is
    looked at alone: a secret that is cut off by the end of one is in none.

    Canaries count where they stand word for word, with their prompts; whatever follows. What a scanner is to look for,
    it looks for in the training texts and in the samples with the same eyes: a secret counts in any writing that the
    scanner takes for the same one, and what it finds in no training text is counted apart (`new`). A secret of which
    the prompt holds a part counts, one that stands in the prompt as a whole does not.

    Args:
        model: Any model that `SecretTree` takes. Weights and modes stay, and no global random number is drawn.
        tokenizer: How it reads text.
        scanner_or_canaries: Canaries; those that were never inserted are counted apart, as controls. Or a scanner.
        training: For a scanner: the texts that the model was trained on, or what the scanner found in them.
        samples: How many texts are written.
        length: How many tokens each has at most.
        temperature: What logits are divided by.
        top_k: Only this many of the most likely tokens are drawn from; 1 is greedy, and all samples are alike.
        top_p: Only the most likely tokens that together have at least this probability are drawn from.
        prompt: What the model is given; None: what the tokenizer puts before every text, or else a new line or a space.
        end: The ids of tokens that end a text; None: the tokenizer's `eos_token_id`, if it has one.
        seed: Of all random numbers, or a generator to draw it from. A sample depends on the seed and its number, and
            not on `batch_size`, but for the rounding of the model.
        batch_size: How many samples are written at once.
        context: For a model without a state: how many of the last tokens it is given; None: all.
        confidence: Of each interval.
        on_batch: Called after each batch with how many samples are written, and how many there will be.

    Raises:
        ArgumentError: An argument is out of range; it is named.
        ModelError: No adapter fits the model, or it returned NaN.
        TokenizerError: The prompt cannot be spelled.

    Example:
        >>> from lightning_exposure import CanarySet, CharTokenizer, SecretFormat
        >>> _ = torch.manual_seed(0)
        >>> canaries = CanarySet.draw(SecretFormat("a#"), repetitions=[1, 1, 0], seed=0)
        >>> found = sample_leaks(nn.Embedding(11, 11), CharTokenizer.from_text("a0123456789"), canaries,
        ...                      samples=200, length=30, prompt="a")
        >>> found.samples, found.tokens, found.total.leaked, found.controls.secrets
        (200, 6000, 2, 1)
        >>> found.total.rate_low < found.total.rate < found.total.rate_high
        True
    """
    decoder = Decoder(temperature, top_k, top_p)
    finder = finder_for(scanner_or_canaries, training)
    whole_number("samples", samples, at_least=1)
    check_confidence(confidence)
    writer = TextWriter(
        model, tokenizer, prompt=prompt, decoder=decoder, length=length, seed=_seed(seed), end=end,
        batch_size=batch_size, context=context,
    )  # fmt: skip
    tally = write_and_count(writer, finder, range(samples), on_batch)
    return SampledLeaks.of(tally, finder.wanted, decoder, length, confidence)


def write_and_count(
    writer: TextWriter, finder: Finder, samples: Sequence[int], on_batch: Callable[[int, int], None] | None = None
) -> SampleTally:
    """What stands in the samples with these numbers; what several processes have counted can be added up."""
    tally = SampleTally()
    for batch in writer.batches(samples):
        tally.add(count(finder, batch))
        if on_batch is not None:
            on_batch(tally.samples, len(samples))
    return tally


def finder_for(wanted: object, training: Training | None) -> Finder:
    """What looks for secrets in samples.

    Raises:
        ArgumentError: It is neither canaries nor a scanner, or it is not known what can leak.
    """
    if isinstance(wanted, Scanner):
        if training is None:
            raise ArgumentError(
                "training is None; expected the texts that the model was trained on, or what the scanner found in "
                "them: without them nobody can tell what leaks from what the model makes up."
            )
        return ScannerFinder(wanted, training)
    if training is not None:
        raise ArgumentError(
            "training is given with canaries; expected it with a Scanner only. Leave it out: canaries say themselves "
            "how often they were inserted."
        )
    listed = list(wanted) if isinstance(wanted, Sequence) else []
    if not listed or not all(isinstance(item, Canary) for item in listed):
        remedy = "Draw canaries with CanarySet.draw(...), or use Scanner() with training=texts."
        raise refusal("scanner_or_canaries", wanted, "canaries or a Scanner", remedy)
    return CanaryFinder(wanted if isinstance(wanted, CanarySet) else CanarySet(listed))


def _seed(seed: int | torch.Generator) -> int:
    if isinstance(seed, torch.Generator):
        return int(torch.randint(2**62, (), generator=seed, device=seed.device))
    return seed
