"""What somebody who has to decide asks of a run: which model, which data, how many guesses, which promise.

Plain rows and sentences, for the page and for the model card alike; none of them holds a secret.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from lightning_exposure.report._chance import expected_luckiest_bits, luckiest_bits, of_a_group
from lightning_exposure.report._summary import listed
from lightning_exposure.report.record import RunRecord
from lightning_exposure.report.verdicts import Answer, Verdict
from lightning_exposure.secrets import Canary

GUESSES = (1, 10, 1_000, 1_000_000)
"""How many guesses are asked about."""

_ALPHA = 0.05

Row = tuple[str, str]


class GuessRow(NamedTuple):
    """For how many inserted canaries some guesses suffice.

    Attributes:
        guesses: How many.
        found: How many canaries they find, and how sure that is.
        spared: How many they do not.
        unknown: Of how many that is not known.
        blind: How many somebody without the model would find, on average.
    """

    guesses: str
    found: str
    spared: str
    unknown: str
    blind: str


# ---- which model, which data ----------------------------------------------------------------------------------------


def date_in_words(record: RunRecord) -> str:
    """When the record was made; "" if that is not known.

    >>> from lightning_exposure.secrets import CanarySet
    >>> date_in_words(RunRecord(CanarySet([]), date="2026-11-18T01:02:03+00:00"))
    '18 November 2026, 01:02 UTC'
    """
    if record.date is None:
        return ""
    try:
        when = datetime.fromisoformat(record.date)
    except ValueError:
        return record.date
    return f"{when.day} {when:%B %Y, %H:%M} {when:%Z}".strip()


def subject_rows(record: RunRecord) -> list[Row]:
    """What the report is about: date, model and hash, data, canaries."""
    rows = [("Date", date_in_words(record))] if record.date else []
    model, data = record.model or {}, record.data or {}
    if "class" in model:
        size = f", {model['parameters']:,} parameters" if isinstance(model.get("parameters"), int) else ""
        rows.append(("Model", f"{model['class']}{size}"))
    if model.get("sha256"):
        rows.append(("SHA-256 of the weights", str(model["sha256"])))
    elif model:
        rows.append(("SHA-256 of the weights", "not computed: no process has all of them"))
    if data:
        count = f", {data['records']:,} records" if isinstance(data.get("records"), int) else ""
        rows.append(("Training data", f"{data.get('class', 'not known')}{count}"))
    rows.append(("Canaries", _canaries_in_words(record)))
    rows.append(("Read in training", _ledger_in_words(record)))
    return rows


def _canaries_in_words(record: RunRecord) -> str:
    inserted = [canary for canary, _ in record.judged if canary.copies]
    controls = sum(1 for canary, _ in record.judged if not canary.copies)
    formats = listed(dict.fromkeys(canary.format.name for canary, _ in record.judged))
    copies = sum(canary.copies for canary in inserted)
    never = f", {controls:,} never inserted" if controls else ""
    return f"{len(inserted):,} inserted, {copies:,} copies in all{never}; format: {formats}" if formats else "none"


def _ledger_in_words(record: RunRecord) -> str:
    if record.ledger is None:
        return "not counted; the copies are those that the data were given"
    total = sum(record.ledger.values())
    unread = [canary.id for canary in record.canaries if canary.copies and record.ledger.get(canary.id) == 0]
    missing = f"; never read: {listed(unread)}" if unread else ""
    return f"canaries were read {total:,} times, counted one by one{missing}"


# ---- how many guesses -----------------------------------------------------------------------------------------------


def guess_rows(record: RunRecord) -> list[GuessRow]:
    """For how many inserted canaries 1, 10, 1,000 and 1,000,000 guesses suffice."""
    judged = [(canary, verdict) for canary, verdict in record.judged if canary.copies]
    return [_guess_row(judged, guesses) for guesses in GUESSES] if judged else []


def _guess_row(judged: Sequence[tuple[Canary, Verdict]], guesses: int) -> GuessRow:
    answers = [verdict.within(guesses) for _, verdict in judged]
    blind = math.fsum(min(1.0, guesses / canary.format.size) for canary, _ in judged)
    return GuessRow(
        f"{guesses:,}",
        _counted([answer for answer in answers if answer.found]),
        _counted([answer for answer in answers if answer.found is False]),
        _counted([answer for answer in answers if answer.found is None]),
        f"{blind:.2g}" if blind else "0",
    )


def _counted(answers: Sequence[Answer]) -> str:
    """How many, and how many of them are proven; the least sure of the others says how sure.

    >>> _counted([Answer(True), Answer(True, 0.95)]), _counted([Answer(True)]), _counted([])
    ('2 (1 proven, 1 with 95% confidence)', '1 (proven)', '0')
    """
    unsure = [answer for answer in answers if answer.found is not None and answer.confidence < 1.0]
    proven = sum(answer.found is not None for answer in answers) - len(unsure)
    if not answers or not (unsure or proven):
        return f"{len(answers):,}"
    how = min(unsure, key=lambda answer: answer.confidence).how if unsure else ""
    if not proven or not unsure:
        return f"{len(answers):,} ({how or 'proven'})"
    return f"{len(answers):,} ({proven:,} proven, {len(unsure):,} {how})"


def chance_in_words(record: RunRecord) -> list[str]:
    """What luck alone would show among so many canaries, and what these show; nothing if nothing was measured."""
    final = record.final
    measured = [canary for canary in record.canaries if canary.copies and final and canary.id in final.estimates]
    if final is None or not measured:
        return []
    count, estimates = len(measured), final.estimates
    limit, usual = luckiest_bits(count, _ALPHA), expected_luckiest_bits(count)
    one, them = (f"{count:,} canaries", "the luckiest of them") if count > 1 else ("one canary", "it")
    words = [
        f"Had the model never seen {'any of ' if count > 1 else ''}the {one}, {them} would show {usual:.1f} bits of "
        f"exposure on average at most, and more than {limit:.1f} bits (log₂ {count:,}/{_ALPHA:g}) with a probability "
        f"of at most {100 * _ALPHA:g}%: they are drawn at random, so any rank is equally likely."
    ]
    above = [canary.id for canary in measured if estimates[canary.id].low > limit]
    reachable = max(estimates[canary.id].ceiling_bits for canary in measured)
    if above:
        words.append(
            f"By the low ends of their intervals {listed(above)} {'is' if len(above) == 1 else 'are'} above that: luck "
            "does not explain it."
        )
    elif reachable <= limit:
        words.append(
            f"No canary of these formats can show more than {reachable:.1f} bits, so none could be told from luck. Use "
            "a format with more secrets."
        )
    else:
        words.append("By the low ends of their intervals none of them is above that: luck would explain it.")
    controls = [canary for canary in record.canaries if not canary.copies and canary.id in estimates]
    if controls:
        top = max(controls, key=lambda canary: estimates[canary.id].low)
        words.append(f"Of the canaries that were never inserted, {top.id} shows the most: {_bits(estimates[top.id])}.")
    return words


def _bits(estimate: Any) -> str:
    low, high = f"{estimate.low:.1f}", f"{estimate.high:.1f}"
    return f"{low} bits" if low == high else f"{low} to {high} bits"


# ---- which promise --------------------------------------------------------------------------------------------------


def privacy_rows(record: RunRecord) -> list[Row]:
    """The promise of differential privacy, and what it rests on; empty without one."""
    found = record.privacy
    if found is None:
        return []
    epsilon = float(found["epsilon"])
    said = "infinite: nothing is promised" if math.isinf(epsilon) else f"{epsilon:.4g}"
    rows = [
        ("Epsilon", said),
        ("Epsilon is for", _unit(found)),
        ("Delta", _plain(found.get("delta"))),
        ("Accountant", _plain(found.get("accountant"))),
        ("Noise multiplier", _plain(found.get("noise_multiplier"))),
        ("Clipping norm", _clipping_norm(found)),
        ("Clipping", _clipping(found)),
        ("Clipping in all fits, one after the other", ", ".join(map(str, found.get("clippings") or []))),
        ("Trained on at a time, at most", _plain(found.get("max_physical_batch_size"))),
        ("Sampling rate", _plain(found.get("sample_rate"))),
        ("Private steps", _plain(found.get("steps"))),
        ("Target epsilon", _plain(found.get("target_epsilon"))),
        ("Largest epsilon allowed", _plain(found.get("max_epsilon"))),
        ("Proven while training", "yes" if found.get("proven") else "no: verify_steps is 0"),
    ]
    rows += _norm_rows(found)
    if found.get("secure"):
        rows.append(("Noise", "from the operating system's cryptographic generator, as are the batches"))
    if found.get("seeded"):
        rows.append(("Noise", "from a fixed seed: whoever knows it can take the noise away again"))
    if found.get("post_processing"):
        rows.append(("Taken on trust", ", ".join(map(str, found["post_processing"]))))
    return [(name, value) for name, value in rows if value]


def _unit(found: Mapping[str, Any]) -> str:
    """Whom epsilon is for; records from before there were users do not say."""
    if found.get("unit") != "user":
        return "one record"
    return f"one user, with at most {_plain(found.get('max_records_per_user'))} records in a batch"


def promise_in_words(record: RunRecord) -> str:
    """Whom epsilon protects, and whom not."""
    if (record.privacy or {}).get("unit") != "user":
        return (
            "Epsilon is about the addition or removal of one record. A secret that is in several records is covered "
            "only as a group."
        )
    own = " Every canary is a user of its own, with all its copies." if _canaries_are_users(record) else ""
    return (
        "Epsilon is about the addition or removal of one user, with all records that are his. A secret that several "
        f"users have in common is covered only as a group.{own}"
    )


def _canaries_are_users(record: RunRecord) -> bool:
    """Whether every canary is a user of its own: a data module that counts them sees to it."""
    return (record.privacy or {}).get("unit") == "user" and record.ledger is not None


def _clipping_norm(found: Mapping[str, Any]) -> str:
    """What examples are clipped to; an adaptive norm is not that which it began with."""
    first, last = (_plain(found.get(name)) for name in ("max_grad_norm", "clipping_norm"))
    return first if not last or last == first else f"{first} at first, {last} at last"


def _clipping(found: Mapping[str, Any]) -> str:
    """How examples are clipped, if not as a whole to a norm that stays."""
    way = found.get("clipping") or {}
    if way.get("name") == "per_layer":
        return "layer by layer, each to the norm over the root of their number"
    if way.get("name") == "adaptive":
        spoken = {"count_noise": "noise on the count", "gradient_noise_multiplier": "noise multiplier of the gradient"}
        noise = ", ".join(f"{said}: {_plain(way[name])}" for name, said in spoken.items() if way.get(name) is not None)
        text = f"adaptive: the norm follows the {_plain(way.get('quantile'))} quantile, covered by epsilon"
        return f"{text} ({noise})" if noise else text
    return ""


def clipping_norm_rows(record: RunRecord) -> list[Row]:
    """How an adaptive clipping norm moved: after how many steps, and what it was; empty for one that stays."""
    points = (record.privacy or {}).get("clipping_norms") or []
    return [(f"{int(steps):,}", f"{float(norm):.4g}") for steps, norm in points]


def _norm_rows(found: Mapping[str, Any]) -> list[Row]:
    """How long the gradients of examples were in the last epoch, if that was logged."""
    if not found.get("norms"):
        return []
    _, share, median = found["norms"][-1]
    note = "in the last epoch, without noise: not covered by epsilon"
    who = "users" if found.get("unit") == "user" else "examples"
    return [
        (f"Share of clipped {who}", f"{100 * float(share):.3g}% {note}"),
        ("Median norm", f"{float(median):.4g} {note}"),
    ]


def norm_rows(record: RunRecord) -> list[tuple[str, str, str]]:
    """How long the gradients of examples were, epoch by epoch: after how many steps, clipped share, median norm."""
    points = (record.privacy or {}).get("norms") or []
    return [(f"{int(steps):,}", f"{100 * float(share):.3g}%", f"{float(norm):.4g}") for steps, share, norm in points]


def spending_rows(record: RunRecord) -> list[Row]:
    """How epsilon grew: after how many steps, and how much."""
    points = (record.privacy or {}).get("spending") or []
    return [(f"{int(steps):,}", _epsilon(epsilon)) for steps, epsilon in points]


def group_rows(record: RunRecord) -> list[tuple[str, str, str]]:
    """What the promise is for canaries that are several records: copies, epsilon and delta.

    Empty without a promise, and where every canary is a user that the promise is for.
    """
    found = record.privacy
    if found is None or math.isinf(float(found["epsilon"])) or _canaries_are_users(record):
        return []
    rows = []
    for copies in sorted({canary.copies for canary, _ in record.judged if canary.copies}):
        epsilon, delta = of_a_group(float(found["epsilon"]), float(found["delta"]), copies)
        rows.append((f"{copies:,}", f"{epsilon:.4g}", "1: nothing is promised" if delta >= 1 else f"{delta:.2g}"))
    return rows


def audit_in_words(record: RunRecord) -> str:
    """What the audit says, beside the promise; "" if there was none."""
    found = record.audit
    if found is None:
        return ""
    sure = f"{100 * float(found['confidence']):.4g}% confidence"
    whom = " for one user" if _canaries_are_users(record) else ""
    words = (
        f"The audit guessed which of {found['inserted'] + found['held_out']:,} canaries were in the data, and was "
        f"right {found['correct']:,} times of {found['guesses']:,}: epsilon is at least "
        f"{float(found['epsilon_lower']):.3g}{whom} with {sure}, at a delta of {float(found['delta']):g}."
    )
    if record.privacy is None:
        return f"{words} No epsilon is promised that this could contradict."
    promised = _epsilon(record.privacy["epsilon"])
    if found.get("alarm"):
        return f"{words} That contradicts the promise of {promised}."
    return f"{words} The promise of {promised} is not contradicted; an audit never proves one."


def gate_rows(record: RunRecord) -> list[Row]:
    """What the gate decided; empty without one."""
    found = record.gate
    if found is None:
        return []
    limits = [
        f"{_plain(found[key])} {unit}"
        for key, unit in (("max_bits", "bits of exposure"), ("max_epsilon", "of epsilon"))
        if found.get(key) is not None
    ]
    rows = [
        ("Limit", " and ".join(limits)),
        ("Answer", _plain(found.get("answer"))),
        ("Why", _plain(found.get("reason"))),
        ("What it does", _plain(found.get("action"))),
        ("Stopped at step", _plain(found.get("stopped_at_step"))),
        ("Looks", _plain(found.get("looks"))),
        ("Confidence of all looks together", _plain(found.get("confidence"))),
    ]
    return [(name, value) for name, value in rows if value]


def defence_rows(record: RunRecord) -> list[Row]:
    """What else was done against memorization: the name, and how."""
    return [
        (
            str(entry.get("name", "?")),
            ", ".join(f"{key} {_plain(value)}" for key, value in entry.items() if key != "name"),
        )
        for entry in record.defences
    ]


def scan_rows(record: RunRecord) -> list[Row]:
    """What a scan of the training texts found, in numbers; empty without one."""
    found = record.scan
    if found is None:
        return []
    rows = found.get("rows", [])
    extracted = sum(bool(row.get("extracted")) for row in rows)
    called = found.get("memorized")
    return [
        ("Secrets in the training texts", f"{len(rows) + int(found.get('left_out', 0)):,}"),
        ("Measured", f"{int(found.get('measured', 0)):,}"),
        (
            "Threshold",
            f"{float(found['threshold_bits']):.2f} bits, which luck exceeds with a probability of at most "
            f"{found['alpha']:g}",
        ),
        ("Memorized", "not known: there was no reference to compare with" if called is None else f"{called:,}"),
        ("Found by an attack", f"{extracted:,}"),
    ]


def _epsilon(value: Any) -> str:
    return "infinity" if math.isinf(float(value)) else f"{float(value):.4g}"


def _plain(value: Any) -> str:
    """A value as people write it; "" for None.

    >>> _plain(0.0012345), _plain(12345), _plain("prv"), _plain(None), _plain([1, 2])
    ('0.001234', '12,345', 'prv', '', '1, 2')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
