"""Hooks, patches, adversarial examples and the like: the single examples' gradients are right, or it is refused."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations, prune

from lightning_exposure.errors import ModelError
from lightning_exposure.privacy.clipping.clipping import Clipping
from tests.privacy.models import BATCH, SIZE, TIME, Scale, made, vectors
from tests.privacy.per_example import assert_clips_like_a_loop, in_one_pass, mean_of_squares, one_by_one

RECURRENT = [nn.LSTM, nn.GRU, nn.RNN]


def layers() -> Any:
    return nn.Sequential(nn.Linear(SIZE, 5), nn.Tanh(), nn.Linear(5, 3))


def recurrent(kind: type[Any]) -> Callable[[], Any]:
    return lambda: kind(SIZE, 3, batch_first=True)


def changed(change: Callable[[Any], Any], make: Callable[[], Any] = layers) -> Any:
    model = made(make)
    change(model)
    return model


# --- right ----------------------------------------------------------------------------------------------------------


def patch_by_a_method(model: Any) -> None:
    def forward(self: Any, inputs: Tensor) -> Tensor:
        return 2 * functional.linear(inputs, self.weight, self.bias)

    model[0].forward = types.MethodType(forward, model[0])


HOOKS: dict[str, Callable[[Any], Any]] = {
    "a forward hook": lambda m: m[0].register_forward_hook(lambda layer, inputs, outputs: outputs.square()),
    "a forward hook that works in place": lambda m: m[0].register_forward_hook(
        lambda layer, i, outputs: outputs.mul_(3)
    ),
    "a forward hook on the last layer": lambda m: m[2].register_forward_hook(lambda layer, i, outputs: outputs.sin()),
    "a hook before": lambda m: m[2].register_forward_pre_hook(lambda layer, inputs: (3 * inputs[0],)),
    "a backward hook": lambda m: m[2].register_full_backward_hook(lambda layer, found, grads: (3 * found[0],)),
    "a hook before backward": lambda m: m[2].register_full_backward_pre_hook(lambda layer, grads: (3 * grads[0],)),
    "a forward of its own": patch_by_a_method,
    "pruning that was made permanent": lambda m: prune.remove(prune.random_unstructured(m[0], "weight", 0.5), "weight"),
}


@pytest.mark.parametrize("change", HOOKS.values(), ids=HOOKS)
def test_hooks_change_what_they_change_without_privacy(change: Callable[[Any], Any]) -> None:
    assert_clips_like_a_loop(changed(change), vectors())


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_hooks_of_recurrent_layers(kind: type[Any]) -> None:
    def twice(layer: nn.Module, inputs: Any, outputs: Any) -> Any:
        return 2 * outputs[0], outputs[1]

    assert_clips_like_a_loop(changed(lambda m: m.register_forward_hook(twice), recurrent(kind)), vectors())


def test_hooks_of_all_modules() -> None:
    handle = register_module_forward_hook(
        lambda layer, i, outputs: 2 * outputs if isinstance(layer, nn.Linear) else None
    )
    try:
        assert_clips_like_a_loop(made(layers), vectors())
    finally:
        handle.remove()


def test_a_forward_that_is_wrapped_while_it_trains() -> None:
    model = made(layers)
    hook = model[0].register_forward_hook(lambda layer, inputs, outputs: 2 * outputs)
    wanted, _ = one_by_one(model, vectors(), 1.0)
    hook.remove()
    with Clipping(model, max_grad_norm=1.0) as clipping:
        inner = model[0].forward
        model[0].forward = lambda x: 2 * inner(x)
        clipping.begin(BATCH)
        mean_of_squares(model, vectors()).backward()
        found = clipping.clipped_sum()
    for parameter, total in wanted.items():
        torch.testing.assert_close(found[parameter], total)


def fgsm(module: Any, inputs: Tensor) -> Tensor:
    """Trains on inputs that were moved to where the loss is larger."""
    inputs = inputs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(mean_of_squares(module, inputs), inputs)
    return mean_of_squares(module, (inputs + 0.1 * gradient.sign()).detach())


def fgsm_and_clean(module: Any, inputs: Tensor) -> Tensor:
    """The same, and on the clean inputs too."""
    inputs = inputs.clone().requires_grad_()
    clean = mean_of_squares(module, inputs)
    (gradient,) = torch.autograd.grad(clean, inputs, retain_graph=True)
    return clean + mean_of_squares(module, (inputs + 0.1 * gradient.sign()).detach())


def asks_by_backward(module: Any, inputs: Tensor) -> Tensor:
    """The same, asked in another way."""
    inputs = inputs.clone().requires_grad_()
    mean_of_squares(module, inputs).backward(inputs=[inputs])
    assert inputs.grad is not None
    return mean_of_squares(module, (inputs + 0.1 * inputs.grad.sign()).detach())


@pytest.mark.parametrize("loss", [fgsm, fgsm_and_clean, asks_by_backward])
@pytest.mark.parametrize("make", [layers, *map(recurrent, RECURRENT)], ids=["layers", "LSTM", "GRU", "RNN"])
def test_asking_for_gradients_of_inputs_is_not_training(make: Any, loss: Any) -> None:
    assert_clips_like_a_loop(made(make), vectors(), loss)


def test_a_layer_that_keeps_its_own_result_for_the_backward_pass() -> None:
    class Gate(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).sigmoid()

    assert_clips_like_a_loop(made(lambda: nn.Sequential(nn.Linear(SIZE, 3), Gate(3, 3), nn.Linear(3, 3))), vectors())


def test_outputs_that_are_written_to_and_inputs_that_are_cut_off() -> None:
    def loss(module: Any, inputs: Tensor) -> Tensor:
        hidden = module[0](inputs)
        hidden[:, 0] = 0
        with torch.no_grad():
            shift = module[0](inputs).mean((1, 2), keepdim=True)
        return (module[2](hidden.tanh_() + shift).square().sum() + module[2](hidden.detach()).sum()) / len(inputs)

    assert_clips_like_a_loop(made(layers), vectors(), loss)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ["a part", "the model", "a layer", "the step"])
def test_compiled_models(what: str) -> None:
    model, loss = made(layers), mean_of_squares
    if what == "a part":
        model = nn.Sequential(torch.compile(model, backend="aot_eager"), nn.Linear(3, 3).double())
    elif what == "the step":
        loss = torch.compile(mean_of_squares, backend="aot_eager")
    else:
        (model if what == "the model" else model[0]).compile(backend="aot_eager")
    assert_clips_like_a_loop(model, vectors(), loss)


# --- refused --------------------------------------------------------------------------------------------------------


def patch_by_a_closure(model: Any) -> None:
    layer = model[0]
    layer.forward = lambda inputs: 2 * functional.linear(inputs, layer.weight, layer.bias)


def wrap_before(model: Any) -> None:
    inner = model[0].forward
    model[0].forward = lambda inputs: 2 * inner(inputs)


def replace_weight(model: Any) -> None:
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())


def prune_half(model: Any) -> None:
    prune.random_unstructured(model[0], "weight", 0.5)


def hook_weight(model: Any) -> None:
    model[0].weight.register_hook(lambda gradient: 2 * gradient)


BEFORE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a hook on a weight": (hook_weight, r"'0' \(Linear\): has hooks on the gradient of 'weight'"),
    "a hook after a weight": (
        lambda m: m[2].bias.register_post_accumulate_grad_hook(lambda parameter: None),
        r"'2' \(Linear\): has hooks on the gradient of 'bias'",
    ),
    "an old backward hook": (
        lambda m: m[2].register_backward_hook(lambda layer, found, grads: None),
        r"'2' \(Linear\): has a hook by register_backward_hook",
    ),
    "pruning": (prune_half, r"'0' \(Linear\): has parameters that a Linear does not have, 'weight_orig'"),
    "spectral norm": (
        lambda m: parametrizations.spectral_norm(m[0]),
        r"'0' \(ParametrizedLinear\): computes its weights from others",
    ),
    "a patch by a closure": (patch_by_a_closure, r"'0' \(Linear\): the gradients of single examples.* do not add up"),
    "a forward that was wrapped": (wrap_before, r"'0' \(Linear\): the gradients of single examples.* do not add up"),
}


@pytest.mark.parametrize(("change", "message"), BEFORE.values(), ids=BEFORE)
def test_refused_before_or_at_the_first_step(change: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        in_one_pass(changed(change), vectors(), 1.0)


def test_a_scripted_layer_is_refused() -> None:
    model = made(lambda: nn.Sequential(nn.Linear(SIZE, 3)))
    model.append(_scripted(nn.Linear(3, 3).double()))
    with pytest.raises(ModelError, match=r"'1' \(.*\): is compiled by torch.jit"):
        Clipping(model, max_grad_norm=1.0)


def _scripted(layer: nn.Module) -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and still in use
        return torch.jit.script(layer)


DURING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a hook on a weight": (hook_weight, r"'0' \(Linear\): has hooks on the gradient of 'weight'"),
    "pruning": (prune_half, r"'0' \(Linear\): was changed while it trained"),
    "weight norm": (
        lambda m: parametrizations.weight_norm(m[0]),
        r"'0' \(ParametrizedLinear\): was changed while it trained",
    ),
    "another weight": (replace_weight, r"'0' \(Linear\): was changed while it trained"),
    "another forward": (patch_by_a_closure, r"'0.weight', '0.bias': got a gradient that did not come through"),
}


@pytest.mark.parametrize("within", [True, False], ids=["within a batch", "between two"])
@pytest.mark.parametrize(("change", "message"), DURING.values(), ids=DURING)
def test_refused_when_it_happens_while_it_trains(change: Callable[[Any], Any], message: str, within: bool) -> None:
    model = made(layers)

    def a_batch(clipping: Clipping, meanwhile: Callable[[Any], Any] | None) -> None:
        clipping.begin(BATCH)
        if meanwhile is not None:
            meanwhile(model)
        mean_of_squares(model, vectors()).backward()
        clipping.clipped_sum()

    with Clipping(model, max_grad_norm=1.0) as clipping:
        a_batch(clipping, None)
        if not within:
            change(model)
        with pytest.raises(ModelError, match=message):
            a_batch(clipping, change if within else None)


def penalty(module: Any, inputs: Tensor) -> Tensor:
    """The gradient of the gradient is part of the loss."""
    inputs = inputs.clone().requires_grad_()
    loss = mean_of_squares(module, inputs)
    (gradient,) = torch.autograd.grad(loss, inputs, create_graph=True)
    return loss + gradient.square().sum()


@pytest.mark.parametrize("make", [layers, *map(recurrent, RECURRENT)], ids=["layers", "LSTM", "GRU", "RNN"])
def test_gradients_of_gradients_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ModelError, match=r"'.*' \(\w+\): a backward pass with create_graph=True went through it"):
        in_one_pass(made(make), vectors(), 1.0, penalty)


class Dropped(Scale):
    def forward(self, inputs: Tensor) -> Tensor:
        return functional.dropout(super().forward(inputs), 0.5)


class Centred(Scale):
    def forward(self, inputs: Tensor) -> Tensor:
        scaled = super().forward(inputs)
        return scaled - scaled.mean(0)


@pytest.mark.parametrize(
    ("make", "message"),
    [(Dropped, r"\(Dropped\): cannot be run on each example by itself"), (Centred, r"\(Centred\): .* do not add up")],
)
def test_layers_of_the_users_that_draw_or_mix_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    before = torch.get_rng_state()
    with pytest.raises(ModelError, match=message):
        in_one_pass(made(lambda: nn.Sequential(make(), nn.Linear(SIZE, 3))), vectors(), 1.0)
    torch.set_rng_state(before)


class Alone(Scale):
    """Divides by how much the examples vary, which one alone does not do at all."""

    def forward(self, inputs: Tensor) -> Tensor:
        scaled = super().forward(inputs)
        return scaled / (scaled - scaled.mean(0, keepdim=True)).norm()


@pytest.mark.parametrize("kind", [Scale, nn.PReLU, lambda: nn.ConvTranspose1d(TIME, 2, 1)])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_an_example_without_a_gradient_is_said_to_be_one_whatever_the_layer(
    kind: Callable[[], nn.Module], value: float
) -> None:
    """Also where a layer is run again on each example, and its gradients are compared with autograd's."""
    model, inputs = made(kind), vectors()
    broken = inputs.clone()
    broken[2] = value
    with Clipping(model, max_grad_norm=1.0) as clipping:
        clipping.begin(len(inputs))
        mean_of_squares(model, broken).backward()
        with pytest.raises(ModelError, match=f"The gradients of 1 of {len(inputs)} examples are infinite or not a"):
            clipping.clipped_sum()
        clipping.begin(len(inputs))  # what could not be compared then is compared now
        mean_of_squares(model, inputs).backward()
        assert clipping.clipped_sum()


def test_a_layer_whose_examples_have_a_gradient_only_together_mixes_them() -> None:
    with pytest.raises(ModelError, match=r"\(Alone\): the gradients of single examples.* do not add up"):
        in_one_pass(made(Alone), vectors(), 1.0)
