"""`per_example_loss`: what each example adds to the loss depends on that example alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure.errors import ArgumentError, MixingError
from lightning_exposure.privacy import PoissonLoader, per_example_loss
from tests.callbacks.privacy_setups import privacy, trainer

VOCAB, TIME = 11, 6
TOKENS = torch.randint(VOCAB, (40, TIME), generator=torch.Generator().manual_seed(0))
LENGTHS = torch.randint(2, TIME + 1, (40, 1), generator=torch.Generator().manual_seed(1))
LABELS = torch.where(torch.arange(TIME) < LENGTHS, TOKENS, -100)


def logits(rows: int = 4) -> Tensor:
    return torch.randn(rows, TIME, VOCAB, generator=torch.Generator().manual_seed(2))


def by_hand(logits: Tensor, labels: Tensor, shift: bool = True) -> list[float]:
    """One token after the other."""
    found = []
    for row, wanted in zip(logits, labels, strict=True):
        pairs = list(zip(row[:-1], wanted[1:], strict=True)) if shift else list(zip(row, wanted, strict=True))
        losses = [-float(step.log_softmax(0)[label]) for step, label in pairs if label != -100]
        found.append(sum(losses) / max(1, len(losses)))
    return found


@pytest.mark.parametrize("shift", [True, False])
def test_it_is_the_mean_over_the_tokens_of_each_example(shift: bool) -> None:
    each = per_example_loss(logits(), LABELS[:4], shift=shift, reduction="none")
    wanted = by_hand(logits(), LABELS[:4], shift)
    assert each.tolist() == pytest.approx(wanted, rel=1e-5)
    assert float(per_example_loss(logits(), LABELS[:4], shift=shift)) == pytest.approx(sum(wanted) / 4, rel=1e-5)
    total = per_example_loss(logits(), LABELS[:4], shift=shift, reduction="sum")
    assert float(total) == pytest.approx(sum(wanted), rel=1e-5)


def test_without_padding_it_is_the_usual_loss() -> None:
    usual = functional.cross_entropy(logits()[:, :-1].flatten(0, 1), TOKENS[:4, 1:].flatten())
    torch.testing.assert_close(per_example_loss(logits(), TOKENS[:4]), usual)
    classes = logits()[:, 0]
    torch.testing.assert_close(
        per_example_loss(classes, TOKENS[:4, 0]), functional.cross_entropy(classes, TOKENS[:4, 0])
    )


def test_an_example_without_a_token_has_no_loss_and_no_gradient() -> None:
    given = logits().requires_grad_()
    labels = LABELS[:4].clone()
    labels[2] = -100
    loss = per_example_loss(given, labels)
    loss.backward()
    assert bool(loss.isfinite())
    assert given.grad is not None
    assert not given.grad[2].any()
    assert given.grad[1].any()
    assert float(per_example_loss(logits()[:0], labels[:0])) == 0.0


def test_half_precision_is_raised() -> None:
    assert per_example_loss(logits().bfloat16(), LABELS[:4]).dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reduction": "max"}, "reduction is 'max'; expected one of 'mean', 'sum', 'none'"),
        ({"labels": LABELS[:3]}, r"logits has the shape \(4, 6, 11\) and labels \(3, 6\); expected"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        per_example_loss(**({"logits": logits(), "labels": LABELS[:4]} | arguments))


class Gpt2(L.LightningModule):
    """A GPT-2 with dropout on texts of different lengths."""

    def __init__(self, *, remedy: bool) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        sizes = {"vocab_size": VOCAB, "n_positions": TIME, "n_embd": 8, "n_layer": 2, "n_head": 2}
        self.model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
        self.remedy = remedy

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        tokens, labels = batch
        positions = torch.arange(TIME).repeat(len(tokens), 1)
        found = self.model(input_ids=tokens, labels=labels, position_ids=positions)
        return per_example_loss(found.logits, labels) if self.remedy else found.loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def test_it_is_the_remedy_for_the_loss_of_hugging_face_models(tmp_path: Path) -> None:
    def loader() -> PoissonLoader:
        return PoissonLoader(DataLoader(TensorDataset(TOKENS, LABELS), batch_size=10))

    with pytest.raises(MixingError, match=r"lightning_exposure\.privacy\.per_example_loss\(logits, labels\)"):
        trainer(tmp_path, privacy()).fit(Gpt2(remedy=False), loader())
    callback = privacy(verify_steps=100)
    trainer(tmp_path, callback).fit(Gpt2(remedy=True), loader())
    assert callback.steps == 8
