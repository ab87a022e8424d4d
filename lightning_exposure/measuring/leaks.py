"""`LeakMonitor`: text is sampled from a model while it trains, and the secrets in it are counted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from lightning_exposure._checks import check_confidence, metric_name, slug, whole_number
from lightning_exposure.leakage import Decoder, SampledLeaks, TextWriter
from lightning_exposure.leakage.counting import Finder, SampleTally
from lightning_exposure.leakage.sampling import write_and_count
from lightning_exposure.measuring._quiet import quiet
from lightning_exposure.measuring.schedule import Schedule
from lightning_exposure.measuring.surroundings import Moment, Surroundings, Update
from lightning_exposure.measuring.trees import ModelOf, check_pick
from lightning_exposure.tokenization import Tokenizer

_REHEARSED = 2
"""So many samples are written before training: what does not fit shows then."""


@dataclass(frozen=True)
class SamplingSettings:
    """How text is sampled.

    Attributes:
        samples: How many texts.
        length: How many tokens each has at most.
        decoder: How a token is drawn.
        prompt: What the model is given; None: what says nothing.
        seed: Of all random numbers.
        batch_size: How many texts are written at once.
        context: For a model without a state: how many of the last tokens it is given.
        confidence: Of each interval.

    Raises:
        ArgumentError: One of them is out of range.
    """

    samples: int = 1000
    length: int = 200
    decoder: Decoder = field(default_factory=Decoder)
    prompt: str | None = None
    seed: int = 0
    batch_size: int = 256
    context: int | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        """Refuse what cannot be done, before anything is trained."""
        for name in ("samples", "length", "batch_size"):
            whole_number(name, getattr(self, name), at_least=1)
        whole_number("seed", self.seed, at_least=0)
        if self.context is not None:
            whole_number("context", self.context, at_least=1, remedy="It counts tokens; None is all of them.")
        check_confidence(self.confidence)


class LeakMonitor:
    """Samples from a model while or after it trains, whatever trains it.

    Call `begin` before the first step, `after_epoch` after each epoch, and `finish` when training has ended.

    Args:
        schedule: When to sample.
        settings: How to sample.
        model: Picks the next-token model out of the module that is being trained; None: the module itself.
        name: The first part of the metrics' names.

    Attributes:
        found: What the newest samples have in them; None if there are none yet.
        history: The metrics of every moment, with its epoch and step: numbers only, without any text.
    """

    def __init__(
        self, schedule: Schedule, settings: SamplingSettings, *, model: ModelOf | None = None, name: str = "leaks"
    ) -> None:
        check_pick(model)
        self.schedule = schedule
        self.settings = settings
        self.name = metric_name(name)
        self.found: SampledLeaks | None = None
        self.history: list[dict[str, float]] = []
        self._model = model
        self._finder: Finder | None = None
        self._tokenizer: Tokenizer | Any = None
        self._sampled_at = -1
        self._restored = False

    def begin(self, module: nn.Module, tokenizer: Tokenizer | Any, finder: Finder) -> None:
        """Begin a run, and rehearse: what cannot be written shows here, and not after training.

        Args:
            module: The module that is being trained.
            tokenizer: How it reads text.
            finder: What looks for secrets.

        Raises:
            ArgumentError: The model cannot write as much, or no prompt can be spelled.
            ModelError: No adapter fits the model.
        """
        self._finder, self._tokenizer, self._sampled_at, self.found = finder, tokenizer, -1, None
        if not self._restored:
            self.history = []
        self._restored = False
        with quiet(module):
            write_and_count(self._writer(module), finder, range(min(_REHEARSED, self.settings.samples)))

    def after_epoch(self, module: nn.Module, around: Surroundings, moment: Moment) -> dict[str, float] | None:
        """Sample if the end of an epoch makes it due; the end of training is left to `finish`.

        Returns:
            What was logged; None if nothing was sampled.
        """
        if not self.schedule.after_epoch(moment.epoch, last=False):
            return None
        return self._sample(module, around, moment)

    def finish(self, module: nn.Module, around: Surroundings, moment: Moment) -> dict[str, float] | None:
        """Sample from the weights that training ended with, unless that was done.

        Returns:
            What was logged; None if nothing was sampled.
        """
        return None if self._sampled_at == moment.step else self._sample(module, around, moment)

    def state_dict(self) -> dict[str, Any]:
        """The history: numbers, and no text."""
        return {"history": [dict(entry) for entry in self.history]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """What `state_dict` gave."""
        self._restored = True
        self.history = [dict(entry) for entry in state_dict["history"]]

    def _sample(self, module: nn.Module, around: Surroundings, moment: Moment) -> dict[str, float]:
        assert self._finder is not None, "begin() has it"
        start = time.perf_counter()
        with quiet(module), around.status("sampling") as update:
            tally = self._shared_out(self._writer(module), around, update)
        self.found = SampledLeaks.of(
            tally, self._finder.wanted, self.settings.decoder, self.settings.length, self.settings.confidence
        )
        self._sampled_at = moment.step
        metrics = leak_metrics(self.name, self.found)
        metrics[f"{self.name}/seconds"] = time.perf_counter() - start
        self.history.append({**metrics, "epoch": float(moment.epoch), "step": float(moment.step)})
        around.log(metrics, moment.step)
        return metrics

    def _shared_out(self, writer: TextWriter, around: Surroundings, update: Update) -> SampleTally:
        """Each process writes every n-th sample; a model that is in parts, all processes read with together."""
        assert self._finder is not None
        samples = range(self.settings.samples)

        def progress(done: int, total: int) -> None:
            update(f"{done:,} of {total:,} texts")

        if around.is_sharded:
            return write_and_count(writer, self._finder, samples, progress)
        try:
            outcome: SampleTally | Exception = write_and_count(
                writer, self._finder, samples[around.rank :: around.world_size], progress
            )
        except Exception as error:  # the others must not wait for what never comes
            outcome = error
        together = SampleTally()
        for part in around.gather(outcome):
            if isinstance(part, Exception):
                raise part
            together.add(part)
        return together

    def _writer(self, module: nn.Module) -> TextWriter:
        settings = self.settings
        return TextWriter(
            module if self._model is None else self._model(module),
            self._tokenizer,
            prompt=settings.prompt,
            decoder=settings.decoder,
            length=settings.length,
            seed=settings.seed,
            batch_size=settings.batch_size,
            context=settings.context,
        )


def leak_metrics(name: str, found: SampledLeaks) -> dict[str, float]:
    """The numbers by their names; none of them says anything about a single secret.

    Of each class: how many distinct secrets appeared (`<class>_secrets`), and the share of samples with at least one of
    them (`<class>_rate`) with its interval. Those of all classes together have no class before them.
    """
    metrics: dict[str, float] = {f"{name}/samples": float(found.samples)}
    for prefix, leaks in [("", found.total), *((f"{slug(it.kind)}_", it) for it in found.classes)]:
        metrics[f"{name}/{prefix}secrets"] = float(leaks.leaked)
        metrics[f"{name}/{prefix}rate"] = leaks.rate
        metrics[f"{name}/{prefix}rate_low"] = leaks.rate_low
        metrics[f"{name}/{prefix}rate_high"] = leaks.rate_high
    if found.controls is not None:
        metrics[f"{name}/controls_rate"] = found.controls.rate
    for new in found.new:
        metrics[f"{name}/{slug(new.kind)}_new"] = float(new.distinct)
    return metrics
