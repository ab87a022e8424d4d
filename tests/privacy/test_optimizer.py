"""The private optimizer takes the steps of Opacus' own, and refuses what would not be private."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus.accountants import RDPAccountant
from opacus.grad_sample import GradSampleModule
from opacus.layers import DPGRU, DPLSTM
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.nn import functional

from lightning_exposure.errors import ArgumentError, ModelError
from lightning_exposure.modules import ConvolutionalNetwork, RecurrentNetwork, TransformerNetwork
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.steps.optimizer import private_optimizer

VOCABULARY, TIME = 11, 7
# Opacus' hooks are called for layers whose inputs want no gradients, which is on purpose.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
    pytest.mark.filterwarnings("ignore:Using a non-full backward hook:FutureWarning"),  # Opacus 1.5
]
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


class Mixed(nn.Module):
    """Embedding, convolution, normalization and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 6)
        self.convolution = nn.Conv1d(6, 8, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.convolution(self.embedding(ids).transpose(1, 2)).transpose(1, 2)
        logits: Tensor = self.head(torch.relu(self.norm(hidden)))
        return logits


MODELS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: RecurrentNetwork(VOCABULARY, hidden_size=6, embedding_size=5),
    "gru": lambda: RecurrentNetwork(VOCABULARY, cell="gru", hidden_size=6, embedding_size=5),
    "embedding, convolution, norm, linear": Mixed,
    "cnn": lambda: ConvolutionalNetwork(VOCABULARY, hidden_size=6, embedding_size=5, num_layers=2),
    "transformer": lambda: TransformerNetwork(VOCABULARY, hidden_size=8, num_heads=2, max_length=TIME),
}


def loss_of(module: nn.Module, batch: Tensor) -> Tensor:
    output = module(batch[:, :-1])
    logits = output[0] if isinstance(output, tuple) else output
    # Not the mean of nothing, which is not a number.
    total = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")
    return total / max(1, batch[:, 1:].numel())


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, VOCABULARY, (size, TIME + 1), generator=generator) for size in (4, 6, 3, 5)]


def as_opacus_has_it(model: nn.Module) -> nn.Module:
    """The same model with Opacus' recurrent layers instead of PyTorch's."""
    model = copy.deepcopy(model)
    if isinstance(model, RecurrentNetwork):
        kind = DPLSTM if isinstance(model.layers, nn.LSTM) else DPGRU
        layers = kind(model.layers.input_size, model.layers.hidden_size, model.layers.num_layers, batch_first=True)
        layers.load_state_dict(model.layers.state_dict())
        model.layers = layers
    return model


def train_with_opacus(model: nn.Module, make: Callable[..., Any], data: list[Tensor]) -> dict[str, Tensor]:
    names = [name for name, _ in model.named_parameters()]
    theirs = as_opacus_has_it(model)
    # The noise is drawn in the order of the optimizer's parameters, and Opacus' layers have another one.
    inner = make([dict(theirs.named_parameters())[name] for name in names])
    hooked = GradSampleModule(theirs)
    optimizer = DPOptimizer(
        inner,
        noise_multiplier=0.7,
        max_grad_norm=0.3,
        expected_batch_size=5,
        generator=torch.Generator().manual_seed(9),
    )
    for batch in data:
        optimizer.zero_grad()
        loss_of(hooked, batch).backward()
        optimizer.step()
    return {name: dict(theirs.named_parameters())[name] for name in names}


def train_with_ours(model: nn.Module, make: Callable[..., Any], data: list[Tensor]) -> dict[str, Tensor]:
    ours = copy.deepcopy(model)
    clipping = Clipping(ours, max_grad_norm=0.3)
    optimizer = private_optimizer(
        make(ours.parameters()),
        clipping,
        noise_multiplier=0.7,
        expected_batch_size=5,
        generator=torch.Generator().manual_seed(9),
    )
    with clipping:
        for batch in data:
            optimizer.zero_grad()
            clipping.begin(len(batch))
            # A batch into which nothing was drawn is shown something else.
            loss_of(ours, batch if len(batch) else data[0]).backward()
            optimizer.step()
    return dict(ours.named_parameters())


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("make_model", MODELS.values(), ids=MODELS)
def test_several_noisy_steps_are_those_of_opacus(make_model: Callable[[], nn.Module], make: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model = make_model()
    wanted = train_with_opacus(model, make, batches())
    found = train_with_ours(model, make, batches())
    before = dict(model.named_parameters())
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert not torch.allclose(value, before[name], atol=1e-3)
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6)


def test_a_batch_without_examples_is_a_step_of_noise_as_with_opacus() -> None:
    torch.manual_seed(0)
    model = Mixed()
    data = [batches()[0], torch.zeros(0, TIME + 1, dtype=torch.long), batches()[1]]
    wanted = train_with_opacus(model, OPTIMIZERS["sgd"], data)
    found = train_with_ours(model, OPTIMIZERS["sgd"], data)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6)


# --- the optimizer as Opacus' users know it -------------------------------------------------------------------------


def a_step(**options: Any) -> tuple[nn.Linear, Clipping, Any]:
    """A linear layer, its clipping, attached, and its private optimizer."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    clipping = Clipping(layer, max_grad_norm=0.5)
    clipping.attach()
    settings = {"noise_multiplier": 1.0, "expected_batch_size": 4, **options}
    return layer, clipping, private_optimizer(torch.optim.SGD(layer.parameters(), lr=1.0), clipping, **settings)


def backward(layer: nn.Linear, clipping: Clipping, examples: int = 4) -> None:
    clipping.begin(examples)
    layer(torch.linspace(-1, 3, 3 * examples).view(examples, 3)).square().mean().backward()


def test_it_is_an_optimizer_of_opacus() -> None:
    layer, clipping, optimizer = a_step()
    assert isinstance(optimizer, DPOptimizer)
    assert optimizer.max_grad_norm == clipping.max_grad_norm
    assert optimizer.state_dict().keys() == {"state", "param_groups"}
    optimizer.load_state_dict(optimizer.state_dict())
    assert [sample.shape for sample in optimizer.grad_samples] == [(0, 2, 3), (0, 2)]
    assert optimizer.accumulated_iterations == 1
    accountant = RDPAccountant()
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=0.1))
    for _ in range(3):
        optimizer.zero_grad()
        backward(layer, clipping)
        optimizer.step()
    assert accountant.history == [(1.0, 0.1, 3)]


def test_the_gradient_is_the_clipped_sum_with_noise_over_the_expected_batch_size() -> None:
    layer, clipping, optimizer = a_step(generator=torch.Generator().manual_seed(2))
    backward(layer, clipping)
    before = layer.weight.detach().clone()
    optimizer.step()
    generator = torch.Generator().manual_seed(2)
    noise = torch.normal(0.0, 0.5, (2, 3), generator=generator)
    torch.testing.assert_close(layer.weight.grad, (optimizer.last_sums[layer.weight] + noise) / 4)
    torch.testing.assert_close(layer.weight, before - layer.weight.grad)
    whole = torch.cat([total.flatten() for total in optimizer.last_sums.values()])
    assert float(whole.norm()) <= 4 * 0.5
    # Clearing the gradients does not clear what can be read of the last step.
    optimizer.zero_grad(set_to_none=False)
    assert layer.weight.grad is None
    assert optimizer.last_sums[layer.weight].any()


def test_without_noise_it_is_the_clipped_sum() -> None:
    layer, clipping, optimizer = a_step(noise_multiplier=0.0)
    backward(layer, clipping)
    optimizer.step()
    torch.testing.assert_close(layer.weight.grad, optimizer.last_sums[layer.weight] / 4)


def test_a_closure_is_called() -> None:
    layer, clipping, optimizer = a_step()
    optimizer.step(lambda: backward(layer, clipping))
    assert layer.weight.grad is not None


def test_a_large_batch_may_come_in_pieces() -> None:
    layer, clipping, optimizer = a_step(noise_multiplier=0.0)
    pieces = []
    for size in (3, 4):
        backward(layer, clipping, size)
        pieces.append(clipping.clipped_sum()[layer.weight])
    start = layer.weight.detach().clone()
    for size in (3, 4):
        optimizer.signal_skip_step(size == 3)
        backward(layer, clipping, size)
        optimizer.step()
        assert torch.equal(layer.weight, start) == (size == 3)
        optimizer.zero_grad()
    torch.testing.assert_close(optimizer.last_sums[layer.weight], pieces[0] + pieces[1])


def test_stepping_twice_without_clearing_is_refused_as_by_opacus() -> None:
    layer, clipping, optimizer = a_step()
    backward(layer, clipping)
    optimizer.step()
    backward(layer, clipping)
    with pytest.raises(ValueError, match="Gradients haven't been cleared"):
        optimizer.step()


def test_a_step_without_a_batch_is_refused() -> None:
    _, _, optimizer = a_step()
    with pytest.raises(ArgumentError, match="call begin before the forward pass"):
        optimizer.step()


def test_release_leaves_the_parameters_clean() -> None:
    layer, clipping, optimizer = a_step()
    inner = optimizer.original_optimizer
    optimizer.zero_grad()
    backward(layer, clipping)
    optimizer.step()
    assert vars(layer.weight)
    assert optimizer.release() is inner
    assert not vars(layer.weight)


# --- what would not be private --------------------------------------------------------------------------------------


def test_the_optimizer_must_have_all_trainable_parameters_and_no_others() -> None:
    layer = nn.Linear(3, 2)
    clipping = Clipping(layer, max_grad_norm=1.0)
    settings: Any = {"noise_multiplier": 1.0, "expected_batch_size": 4}
    with pytest.raises(ModelError, match="does not have 'bias': every example is clipped over all"):
        private_optimizer(torch.optim.SGD([layer.weight]), clipping, **settings)
    other = nn.Parameter(torch.ones(5))
    with pytest.raises(ModelError, match=r"1 trainable parameters that are not the module's, of the shapes \(5,\)"):
        private_optimizer(torch.optim.SGD([*layer.parameters(), other]), clipping, **settings)
    layer.bias.requires_grad_(False)
    private_optimizer(torch.optim.SGD([layer.weight]), clipping, **settings)
    private_optimizer(torch.optim.SGD(layer.parameters()), clipping, **settings)


def test_a_parameter_may_be_frozen_and_unfrozen_in_between() -> None:
    layer, clipping, optimizer = a_step()
    layer.bias.requires_grad_(False)
    start = layer.bias.detach().clone()
    for frozen in (True, False):
        layer.bias.requires_grad_(not frozen)
        optimizer.zero_grad()
        backward(layer, clipping)
        optimizer.step()
        assert len(optimizer.last_sums) == (1 if frozen else 2)
        assert torch.equal(layer.bias, start) == frozen


def test_a_layer_that_was_unfrozen_unnoticed_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    clipping = Clipping(model, max_grad_norm=1.0)
    sgd = torch.optim.SGD(model.parameters())
    optimizer = private_optimizer(sgd, clipping, noise_multiplier=1.0, expected_batch_size=4)
    with clipping:
        model[0].requires_grad_(True)
        clipping.begin(4)
        model(torch.ones(4, 3)).sum().backward()
        with pytest.raises(ModelError, match=r"'0.weight', '0.bias': .* its layer was unfrozen after"):
            optimizer.step()


def test_a_parameter_that_leaves_the_optimizer_is_noticed() -> None:
    layer, clipping, optimizer = a_step()
    backward(layer, clipping)
    optimizer.param_groups[0]["params"].pop()
    with pytest.raises(ModelError, match="1 trainable parameters are no longer both in the optimizer and in"):
        optimizer.step()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier is -1.0; expected a number of at least 0"),
        ({"expected_batch_size": 0}, "expected_batch_size is 0; expected a number above 0"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        a_step(**options)
