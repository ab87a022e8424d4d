"""What a record says of a private training run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_exposure.privacy.steps.accounting import spending, spent

if TYPE_CHECKING:
    from lightning_exposure.callbacks.private.differential_privacy import DifferentialPrivacy
    from lightning_exposure.privacy.steps.origin import Record


def way_of(privacy: DifferentialPrivacy) -> dict[str, Any]:
    """How a fit is made private, as far as another fit of the same weights may do it in another way."""
    return {"clipping": privacy.norm_in_force.name, "secure": privacy.secure, "seeded": privacy.seed is not None}


def privacy_facts(privacy: DifferentialPrivacy, fits: Record) -> dict[str, Any]:
    """The promise, what it rests on, and how epsilon was spent; JSON types but for an epsilon that is infinite.

    Args:
        privacy: The newest fit.
        fits: All of them that the promise is about: what it says of them holds for each.
    """
    budget, history = privacy.budget, list(privacy.history)
    said = spent(history, budget.delta, budget.accountant)
    ways = {name: fits.in_all(name) or [value] for name, value in way_of(privacy).items()}
    clippings = [name or "unknown" for name in ways["clipping"]]
    return {
        "epsilon": said.epsilon,
        "delta": budget.delta,
        "unit": privacy.unit,
        "max_records_per_user": privacy.max_records_per_user,
        "max_physical_batch_size": privacy.max_physical_batch_size,
        "accountant": said.accountant,
        "noise_multiplier": privacy.noise_multiplier_,
        "max_grad_norm": privacy.max_grad_norm,
        "sample_rate": history[-1][1] if history else None,
        "steps": privacy.steps,
        "target_epsilon": budget.target_epsilon,
        "max_epsilon": budget.max_epsilon,
        "history": [list(entry) for entry in history],
        "log_norms": privacy.log_norms,
        "norms": [[steps, *found] for steps, found in privacy.norms.epochs],
        "spending": [list(point) for point in spending(history, budget.delta, budget.accountant)],
        **privacy.norm_in_force.facts,
        "clipping_norm": privacy.norm_in_force.norm,
        "clippings": clippings if len(clippings) > 1 else [],
        "secure": ways["secure"] == [True],
        "loss_reduction": privacy.loss_reduction,
        "private": privacy.private,
        "post_processing": list(privacy.post_processing),
        "proven": privacy.verify_steps > 0,
        "seeded": True in ways["seeded"],
    }
