"""Private steps in one of two processes, without a Trainer. Run by tests/callbacks/privacy_ddp_script.py."""

from __future__ import annotations

import torch
from torch import nn

from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.steps.optimizer import ClippedOptimizer, private_optimizer

SIZES = [(3, 5), (4, 0), (0, 0), (2, 6)]  # how many examples each process draws


def make(expected: float, distributed: bool) -> tuple[nn.Module, Clipping, ClippedOptimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    clipping = Clipping(model, max_grad_norm=0.4)
    clipping.attach()
    optimizer = private_optimizer(
        torch.optim.SGD(model.parameters(), lr=0.5),
        clipping,
        noise_multiplier=0.6,
        expected_batch_size=expected,
        generator=torch.Generator().manual_seed(1),
        distributed=distributed,
    )
    return model, clipping, optimizer


def take_steps(ranks: list[int], expected: float, distributed: bool) -> tuple[nn.Module, ClippedOptimizer]:
    """Steps with the examples of these processes."""
    model, clipping, optimizer = make(expected, distributed)
    generator = torch.Generator().manual_seed(2)
    for sizes in SIZES:
        shares = [torch.randn(size, 3, generator=generator) for size in sizes]
        examples = torch.cat([shares[rank] for rank in ranks])
        optimizer.zero_grad()
        clipping.begin(len(examples))
        inputs = examples if len(examples) else torch.ones(1, 3)
        (model(inputs).square().sum() / len(inputs)).backward()
        optimizer.step()
    return model, optimizer


def by_name(model: nn.Module, values: dict[nn.Parameter, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: values[parameter] for name, parameter in model.named_parameters()}


def of_process(rank: int) -> dict[str, dict[str, torch.Tensor]]:
    """What one of two processes comes to; and beside it, what a single one does with the examples of both."""
    model, optimizer = take_steps([rank], expected=4.0, distributed=True)
    alone, single = take_steps([0, 1], expected=8.0, distributed=False)
    return {
        "weights": dict(model.state_dict()),
        "sums": by_name(model, optimizer.last_sums),
        "total": by_name(alone, single.last_sums),
        "alone": dict(alone.state_dict()),
    }
