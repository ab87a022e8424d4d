"""`CanaryAttack`: one attack per format of the canaries, and what it says of each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from lightning_exposure._checks import flag, metric_name, whole_number
from lightning_exposure._files import plain
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.extraction import AttackName, Extraction, check_settings, extract
from lightning_exposure.measuring._quiet import quiet
from lightning_exposure.measuring.schedule import Schedule
from lightning_exposure.measuring.surroundings import Moment, Surroundings, Update
from lightning_exposure.measuring.tracebacks import without_locals
from lightning_exposure.measuring.trees import CanaryTrees
from lightning_exposure.report.record import RunRecord
from lightning_exposure.report.verdicts import Verdict, verdict_of
from lightning_exposure.secrets import Canary, Redaction
from lightning_exposure.tree import SecretTree

_TEXTS = ("known", "starting_with", "target")
"""Settings that may be secrets, or how they begin."""

_LEAST = {"budget": 100, "width": 2, "samples": 20}
"""What makes an attack as short as can be, by the name of the setting: an attack has one of them, or none."""


class CanaryAttack:
    """Attacks a model during or after training, in any training loop.

    Call `begin` when the trees are built, `after_epoch` after each epoch, and `finish` when training has ended.

    Args:
        trees: The trees of the canaries.
        schedule: When to attack.
        algorithm: As for `extract`.
        top_k: How many candidates per format; None: as many as the format has canaries.
        settings: Settings of the algorithm, as for `extract`.
        name: The first part of the metrics' names.
        reveal: Whether states that are saved hold what was found in full.

    Attributes:
        extractions: The newest attack, by format name.
        estimates: The exposures of the model that was attacked, by canary id, where they were measured.
    """

    def __init__(
        self,
        trees: CanaryTrees,
        schedule: Schedule,
        algorithm: AttackName = "shortest_path",
        *,
        top_k: int | None = None,
        settings: Mapping[str, Any] | None = None,
        name: str = "extraction",
        reveal: bool = False,
    ) -> None:
        if top_k is not None:
            whole_number("top_k", top_k, at_least=1, remedy="None is as many as the format has canaries.")
        trees.canaries.refuse_made_for_audits()  # how many guesses find one is its exposure in other words
        self._settings = dict(settings or {})
        own = {key: it for key, it in self._settings.items() if key not in ("known", "memory")}
        self._in_force = {**check_settings(algorithm, own), **own}
        self.trees = trees
        self.reveal = flag("reveal", reveal)
        self.schedule = schedule
        self.algorithm = algorithm
        self.name = metric_name(name)
        self.extractions: dict[str, Extraction] = {}
        self.estimates: dict[str, ExposureEstimate] = {}
        self._top_k = top_k
        self._now = self._settings  # for the run under way
        self._attacked_at = -1

    @property
    def extracted(self) -> list[str]:
        """The ids of the canaries among the candidates of the newest attack."""
        return [key for key, verdict in self.verdicts.items() if verdict.order is not None]

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """How many guesses find each canary, by its id."""
        return {
            canary.id: verdict_of(
                canary.text,
                canary.format.size,
                self.estimates.get(canary.id),
                self.extractions.get(canary.format.name),
            )
            for canary in self.trees.canaries
        }

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers of the newest attack by their names."""
        return {
            f"{self.name}/extracted": float(len(self.extracted)),
            f"{self.name}/expansions": float(sum(attack.expansions for attack in self.extractions.values())),
        }

    @without_locals
    def begin(self, model: nn.Module, *, quick: bool = False) -> None:
        """Rehearse: a setting out of range shows in the smallest attack, and not after training.

        Args:
            model: The module that is being trained.
            quick: Whether it is a trial run that should take no time.
        """
        least = {name: most for name, most in _LEAST.items() if name in self._in_force}
        self._attacked_at = -1
        self._now = {**self._settings, **(least if quick else {})}
        smaller = {
            name: most for name, most in least.items() if self._in_force[name] is None or self._in_force[name] > most
        }
        top_k = 1 if self._top_k is None else self._top_k
        with quiet(model):
            for tree in self.trees.trees.values():
                extract(tree, self.algorithm, top_k, **{**self._settings, **smaller})

    @without_locals
    def after_epoch(
        self, model: nn.Module, around: Surroundings, moment: Moment, estimates: Mapping[str, ExposureEstimate]
    ) -> dict[str, float] | None:
        """Attack if the end of an epoch makes it due; at the end of training that is left to `finish`.

        Args:
            model: The module that is being trained.
            around: Where it runs.
            moment: When.
            estimates: Exposures of secrets in the very weights that are attacked, by text.

        Returns:
            What was logged; None if there was no attack.
        """
        if not self.schedule.after_epoch(moment.epoch, last=False):
            return None
        self._attack(model, around, moment, estimates)
        around.log(self.metrics, moment.step)
        return self.metrics

    @without_locals
    def finish(
        self, model: nn.Module, around: Surroundings, moment: Moment, estimates: Mapping[str, ExposureEstimate]
    ) -> dict[str, float]:
        """Attack the weights that training ended with, unless that was done; takes what `after_epoch` takes.

        Returns:
            What was logged.
        """
        is_new = self._attacked_at != moment.step
        self._attack(model, around, moment, estimates)
        if is_new:
            around.log(self.metrics, moment.step)
        return self.metrics

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that were given, without what they may say of a secret: how it begins, or all of it."""
        return self._shown(self._settings)

    def add_to_record(self, record: RunRecord) -> None:
        """Put the newest attack into the record of the run."""
        place = record.place_for(self.name, self.trees.canaries, "extractions")
        place.extractions = dict(self.extractions)
        settings = {"algorithm": self.algorithm, "top_k": self._top_k, **self._shown(self._in_force)}
        place.settings = {**place.settings, self.name: plain(settings, self.name)}

    def state_dict(self) -> dict[str, Any]:
        """The newest attack, as plain values.

        Checkpoints are passed on: what was found is masked, and candidates that are canaries are known by their ids.
        """
        canaries = self.trees.canaries
        redaction = Redaction(canaries, shared=True, reveal=self.reveal)
        estimates = {key: found.redacted(redaction, canaries[key].format) for key, found in self.estimates.items()}
        return {
            "extractions": {name: _to_state(attack, redaction) for name, attack in self.extractions.items()},
            "estimates": {key: estimate.to_dict() for key, estimate in estimates.items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """What `state_dict` gave."""
        texts = {canary.id: canary.text for canary in self.trees.canaries}
        formats = {format.name: format for format in self.trees.by_format}
        given = {name: value for name, value in self._settings.items() if name in _TEXTS}
        self.extractions = {
            name: replace(_from_state(fields, texts, given), format=formats.get(name))
            for name, fields in state_dict["extractions"].items()
        }
        self.estimates = {
            key: replace(ExposureEstimate(**fields), secret=texts.get(key, fields["secret"]))
            for key, fields in state_dict.get("estimates", {}).items()
        }

    def _shown(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        redaction, shown = Redaction(self.trees.canaries, shared=True, reveal=self.reveal), dict(settings)
        for name, value in settings.items():
            for format in self.trees.by_format:
                if isinstance(value, str) and value and format.acceptor().walk(value) is not None:
                    shown[name] = redaction.beginning(value, format)
                    break
        return shown

    def _attack(
        self, model: nn.Module, around: Surroundings, moment: Moment, estimates: Mapping[str, ExposureEstimate]
    ) -> None:
        canaries = self.trees.canaries
        # Somebody may have measured the same weights since they were attacked.
        self.estimates = {canary.id: estimates[canary.text] for canary in canaries if canary.text in estimates}
        if self._attacked_at == moment.step:
            return
        self._attacked_at = moment.step
        with quiet(model), around.status(f"extraction: {self.algorithm}") as update:
            found = self.trees.map(around, lambda tree, members: self._attack_format(tree, members, update))
        self.extractions = {format.name: attack for format, attack in found.items()}

    def _attack_format(self, tree: SecretTree, canaries: Sequence[Canary], update: Update) -> Extraction:
        def progress(expansions: int, open_nodes: int, best: float) -> None:
            found = "nothing yet" if best == math.inf else f"best {best:.1f} bits"
            update(f"{expansions:,} expansions, {open_nodes:,} open, {found}")

        top_k = len(canaries) if self._top_k is None else self._top_k
        return extract(tree, self.algorithm, top_k, progress=progress, **self._now)


def _to_state(attack: Extraction, redaction: Redaction) -> dict[str, Any]:
    """An attack as plain values, masked; each candidate with the id of the canary that it is, or None."""
    content = attack.redacted(redaction).to_dict()
    ids = [redaction.canary(candidate.text) for candidate in attack.candidates]
    candidates = [{**fields, "canary": id_} for fields, id_ in zip(content["candidates"], ids, strict=True)]
    return {**content, "candidates": candidates}


def _from_state(fields: Mapping[str, Any], texts: Mapping[str, str], settings: Mapping[str, Any]) -> Extraction:
    """What `_to_state` made, with the texts of canaries, and those that the attack was given, as they were."""
    candidates = [{**item, "text": texts.get(item.get("canary"), item["text"])} for item in fields["candidates"]]
    return Extraction.from_dict({**fields, "candidates": candidates, "settings": {**fields["settings"], **settings}})
