"""A task for lm-evaluation-harness: how exposed canaries are in any model that the harness can run.

`write_task` writes a directory; `lm_eval --include_path DIRECTORY --tasks NAME` then reports, for every canary, its
exposure by sampling in bits, the lower end of the interval, and its rank. The harness scores each canary, and
references that are drawn uniformly from its format, with one request each; the numbers are those of
`measure_exposure(tree, texts, "sampling", samples=..., seed=...)`.

The harness itself is needed only where the task is run.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_exposure._checks import SAFE_NAME, refusal, whole_number
from lightning_exposure._files import write_whole
from lightning_exposure.errors import ArgumentError, ScoreError
from lightning_exposure.exposure import ExposureEstimate, exposure_from_scores
from lightning_exposure.secrets import CanarySet, SecretFormat

DOCUMENTS = "documents.jsonl"
FUNCTIONS = "exposure_task.py"
METRICS = ("exposure", "exposure_low", "rank")
"""What is reported of each canary, as `exposure/<id>` and so on; and `exposure_low/max`, for decisions."""

_SUMMARY = "exposure_low/max"

Item = tuple[str, str, float, int]
"""What one document adds to a metric: the canary's id or "", the format, the cost in bits, the size of the format."""

_PYTHON = '''\
"""What the harness calls for this task; written by `lightning-exposure export lm-eval`."""

from pathlib import Path

from lightning_exposure.integrations.lm_eval import Reported, read_documents, results_of

IDS = {ids}


def documents(**_):
    return read_documents(Path(__file__).parent)


def process_results(doc, results):
    return results_of(doc, results, IDS)


{reported}
'''


def write_task(
    directory: str | os.PathLike[str],
    canaries: CanarySet,
    *,
    references: int = 1000,
    seed: int = 0,
    name: str = "exposure",
) -> Path:
    """Write a task of lm-evaluation-harness that measures canaries.

    The files hold the canaries, so that only their owner may read them.

    Args:
        directory: Where to; it must be new or empty.
        canaries: What to measure.
        references: How many other secrets of each format are scored, if it has as many: the more, the more bits can be
            told; it cannot show more than about their logarithm.
        seed: Where the references come from.
        name: What the task is called.

    Returns:
        The file that describes the task.

    Raises:
        ArgumentError: There is nothing to measure, or the directory is not empty.
    """
    whole_number("references", references, at_least=1)
    if not len(canaries):
        raise ArgumentError("canaries is empty; expected at least one. Draw some with CanarySet.draw.")
    canaries.refuse_made_for_audits()
    if not SAFE_NAME.fullmatch(name):
        raise refusal("name", name, "only the characters a-z 0-9 . _ -")
    target = Path(directory)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise refusal("directory", str(target), "a new or empty directory", "Choose another one.")
    documents = [each for format_ in canaries.by_format() for each in _documents(canaries, format_, references, seed)]
    lines = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents)
    target.mkdir(parents=True, exist_ok=True)
    write_whole(target / DOCUMENTS, lines, private=True)
    ids = [canary.id for canary in canaries]
    keys = [_SUMMARY, *(f"{metric}/{id_}" for id_ in ids for metric in METRICS)]
    reported = "\n".join(f"metric_{place} = Reported({key!r})" for place, key in enumerate(keys))
    write_whole(target / FUNCTIONS, _PYTHON.format(ids=ids, reported=reported), private=True)
    write_whole(target / f"{name}.yaml", _yaml(name, keys), private=True)
    return target / f"{name}.yaml"


def _yaml(name: str, keys: Sequence[str]) -> str:
    """The description, in the harness's own dialect of YAML: `!function` names a function of the file beside it."""
    module = FUNCTIONS.removesuffix(".py")
    lines = [
        f"task: {name}",
        f"custom_dataset: !function {module}.documents",
        "output_type: loglikelihood",
        "test_split: test",
        "doc_to_text: prompt",
        "doc_to_target: secret",
        'target_delimiter: ""',
        "num_fewshot: 0",
        f"process_results: !function {module}.process_results",
        "metric_list:",
    ]
    for place, key in enumerate(keys):
        lines += [
            f"  - metric: {json.dumps(key)}",
            f"    aggregation: !function {module}.metric_{place}",
            f"    higher_is_better: {'true' if key.startswith('rank/') else 'false'}",
        ]
    return "\n".join([*lines, "metadata:", "  version: 1.0", ""])


def _documents(canaries: CanarySet, format: SecretFormat, references: int, seed: int) -> list[dict[str, Any]]:
    """The canaries of a format, then its references; each is a prompt and what follows it."""
    own = canaries.by_format()[format]
    texts = [canary.text for canary in own]
    drawn = format.sample(min(references, format.size - len(own)), seed, exclude=texts)
    if not drawn:
        raise refusal(
            "canaries", f"all {format.size} secrets of {format.pattern!r}", "some that are left as references"
        )
    named = [*((canary.id, canary.text) for canary in own), *(("", text) for text in drawn)]
    start = len(format.prompt)
    return [
        {"id": id_, "format": format.name, "prompt": text[:start], "secret": text[start:], "size": str(format.size)}
        for id_, text in named
    ]


# ---- what the harness calls ---------------------------------------------------------------------------------------


def read_documents(directory: Path) -> dict[str, Any]:
    """The documents of a task, as the harness wants them; in memory, so that no cache keeps a copy."""
    from datasets import Dataset

    lines = (directory / DOCUMENTS).read_text(encoding="utf-8").splitlines()
    return {"test": Dataset.from_list([json.loads(line) for line in lines])}


def results_of(
    document: Mapping[str, Any], results: Sequence[tuple[float, bool]], ids: Sequence[str]
) -> dict[str, Item]:
    """What the answer to one request adds to every metric: each needs all of them.

    Args:
        document: What was asked.
        results: The log-likelihood in nats, and whether it is the likeliest text.
        ids: Of the canaries.
    """
    cost = -float(results[0][0]) / math.log(2)
    item = (document["id"], document["format"], cost, int(document["size"]))
    return dict.fromkeys([_SUMMARY, *(f"{metric}/{id_}" for id_ in ids for metric in METRICS)], item)


class Reported:
    """Makes one number of what all documents added.

    Args:
        key: Which: a metric and the id of a canary, as `exposure/pin-1x`; or `exposure_low/max`.

    Example:
        >>> items = [("pin-4x", "pin", 2.0, 100), ("", "pin", 3.0, 100), ("", "pin", 1.0, 100)]
        >>> Reported("rank/pin-4x")(items)
        50.5
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self.__name__ = key  # by which the harness calls it

    def __call__(self, items: Sequence[Item]) -> float:
        """The number.

        Raises:
            ScoreError: The canary was not scored, because the harness was told to read only a part.
        """
        if self._key == _SUMMARY:
            return max(estimate.low for estimate in estimates_of(items).values())
        metric, _, id_ = self._key.partition("/")
        estimates = estimates_of(items)
        if id_ not in estimates:
            raise ScoreError(f"{id_} was not scored; expected all documents. Run the task without --limit.")
        found = estimates[id_]
        return float({"exposure": found.bits, "exposure_low": found.low, "rank": found.rank}[metric])


def estimates_of(items: Sequence[Item]) -> dict[str, ExposureEstimate]:
    """The exposure of every canary, by its id, from what all documents added."""
    estimates: dict[str, ExposureEstimate] = {}
    for name in dict.fromkeys(item[1] for item in items):
        of_format = [item for item in items if item[1] == name]
        own, drawn = ([item for item in of_format if bool(item[0]) == known] for known in (True, False))
        if own:
            costs, references = ([item[2] for item in some] for some in (own, drawn))
            found = exposure_from_scores([item[0] for item in own], costs, references, of_format[0][3])
            estimates.update({estimate.secret: estimate for estimate in found})
    return estimates
