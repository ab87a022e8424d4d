"""nn.MultiheadAttention and PyTorch's Transformers: their numbers, and the gradients of single examples besides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from lightning_exposure.errors import ModelError
from lightning_exposure.privacy.clipping.clipping import Clipping
from tests.privacy.models import BATCH, SIZE, TIME, made, vectors
from tests.privacy.per_example import assert_clips_like_a_loop, in_one_pass, mean_of_squares, one_by_one


class Attention(nn.Module):
    """Attention of a signal to itself, or to something that is made of it; time first or not."""

    def __init__(self, reads: str = "itself", **options: Any) -> None:
        super().__init__()
        self.reads = reads
        self.attention = nn.MultiheadAttention(SIZE, 2, **options)

    def forward(self, inputs: Tensor, **given: Any) -> Tensor:
        signal = inputs if self.attention.batch_first else inputs.transpose(0, 1)
        outputs: Tensor = self.attention(*self.read(signal), **given)[0]
        return outputs if self.attention.batch_first else outputs.transpose(0, 1)

    def read(self, signal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        longer = torch.cat([signal.cos(), signal], 1 if self.attention.batch_first else 0)
        if self.reads == "itself":
            return signal, signal, signal
        if self.reads == "another":
            return signal, longer, longer
        return signal, longer[..., : self.attention.kdim], longer.square()[..., : self.attention.vdim]


KINDS: dict[str, Callable[[], Any]] = {
    "of itself": lambda: Attention(batch_first=True),
    "time first": lambda: Attention(),
    "without biases": lambda: Attention(bias=False),
    "of another signal": lambda: Attention("another", batch_first=True),
    "of another signal, time first": lambda: Attention("another"),
    "of two others": lambda: Attention("two", batch_first=True),
    "of two others, without biases": lambda: Attention("two", bias=False),
    "of others of other sizes": lambda: Attention("two", kdim=3, vdim=2, batch_first=True),
    "of others of other sizes, without biases": lambda: Attention("two", kdim=3, vdim=2, bias=False),
    "with one more key": lambda: Attention(add_bias_kv=True),
    "with one more key, and zeros": lambda: Attention("another", add_bias_kv=True, add_zero_attn=True),
    "with zeros": lambda: Attention(add_zero_attn=True, batch_first=True),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_single_examples_are_clipped_as_in_a_loop(make: Callable[[], Any]) -> None:
    assert_clips_like_a_loop(made(make), vectors())


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_in_single_precision_too(make: Callable[[], Any]) -> None:
    assert_clips_like_a_loop(made(make).float(), vectors().float(), tolerance=1e-4)


@pytest.mark.parametrize("steps", [1, 40])
def test_of_one_step_and_of_many(steps: int) -> None:
    # With forty the gradients themselves are smaller than the products of all pairs of steps.
    assert_clips_like_a_loop(made(KINDS["of another signal"]), vectors(BATCH, steps, SIZE))


def causal(kind: torch.dtype = torch.bool) -> Tensor:
    above = torch.ones(TIME, TIME, dtype=torch.bool).triu(1)
    return above if kind == torch.bool else torch.zeros(TIME, TIME, dtype=kind).masked_fill(above, -torch.inf)


def padding() -> Tensor:
    return torch.arange(TIME) >= torch.tensor([TIME, 4, 1, 3, 5])[:, None]


GIVEN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "no weights": {"need_weights": False},
    "weights of each head": {"average_attn_weights": False},
    "a mask": {"attn_mask": causal(), "need_weights": False},
    "a mask of numbers": {"attn_mask": causal(torch.float64)},
    "a hint": {"attn_mask": causal(), "is_causal": True, "need_weights": False},
    "a hint, and weights": {"attn_mask": causal(), "is_causal": True},
    "padding": {"key_padding_mask": padding()},
    "padding and a hint": {
        "key_padding_mask": padding(),
        "attn_mask": causal(),
        "is_causal": True,
        "need_weights": False,
    },
    "a mask of each head": {"attn_mask": causal().repeat(2 * BATCH, 1, 1)},
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("options", [{"batch_first": True}, {"add_bias_kv": True}], ids=["batch first", "time first"])
def test_outputs_weights_and_their_gradients_are_those_of_pytorch(
    options: dict[str, Any], given: dict[str, Any], training: bool
) -> None:
    model = made(lambda: Attention(dropout=0.3, **options))
    model.attention.train(training)  # a part may sleep, while the whole trains
    inputs = vectors().requires_grad_()

    def everything() -> list[Tensor]:
        torch.manual_seed(5)
        signal = inputs if model.attention.batch_first else inputs.transpose(0, 1)
        found = [part for part in model.attention(signal, signal, signal, **given) if part is not None]
        loss = sum((part * torch.arange(part.numel()).view(part.shape).cos()).sum() for part in found)
        return [*found, *torch.autograd.grad(loss, [inputs])]

    wanted = everything()
    with Clipping(model, max_grad_norm=1.0) as clipping:
        clipping.begin(BATCH)
        found = everything()
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("need_weights", [True, False])
def test_padding_of_each_example_is_left_out(need_weights: bool) -> None:
    class Padded(Attention):
        def forward(self, inputs: Tensor, **given: Any) -> Tensor:
            nothing = (inputs == 0).all(2)
            return super().forward(inputs, key_padding_mask=nothing, need_weights=need_weights)

    inputs = vectors() * ~padding()[:, :, None]
    assert_clips_like_a_loop(made(lambda: Padded("itself", batch_first=True)), inputs)


def test_weights_may_be_learned_from() -> None:
    def loss(module: Any, inputs: Tensor) -> Tensor:
        outputs, weights = module.attention(inputs, inputs, inputs)
        total: Tensor = (outputs.sum() + weights.square().sum()) / len(inputs)
        return total

    assert_clips_like_a_loop(made(KINDS["of itself"]), vectors(), loss)


# --- PyTorch's Transformers -----------------------------------------------------------------------------------------


class Turned(nn.Module):
    """A module that wants time first."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor, *memory: Tensor) -> Tensor:
        outputs: Tensor = self.inner(*(part.transpose(0, 1) for part in (inputs, *memory)))
        return outputs.transpose(0, 1)


class WithMemory(nn.Module):
    """A module that also reads a memory, which is made of what it is given."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.inner(inputs, torch.cat([inputs.cos(), inputs], 1))
        return outputs


def encoder(layers: int = 2, **options: Any) -> nn.TransformerEncoder:
    norm = nn.LayerNorm(SIZE) if options.pop("with_norm", False) else None
    layer = nn.TransformerEncoderLayer(SIZE, 2, 8, **{"dropout": 0.0, "batch_first": True, **options})
    return nn.TransformerEncoder(layer, layers, norm=norm, enable_nested_tensor=False)


def decoder(**options: Any) -> nn.TransformerDecoder:
    layer = nn.TransformerDecoderLayer(SIZE, 2, 8, **{"dropout": 0.0, "batch_first": True, **options})
    return nn.TransformerDecoder(layer, 2, norm=nn.LayerNorm(SIZE))


def both(**options: Any) -> nn.Transformer:
    return nn.Transformer(SIZE, 2, 1, 1, 8, dropout=0.0, **options)


TRANSFORMERS: dict[str, Callable[[], nn.Module]] = {
    "encoder": encoder,
    "encoder, norms first": lambda: encoder(norm_first=True, activation="gelu", with_norm=True),
    "encoder, time first": lambda: Turned(encoder(batch_first=False, with_norm=True)),
    "encoder layer": lambda: nn.TransformerEncoderLayer(SIZE, 2, 8, dropout=0.0, batch_first=True, bias=False),
    "decoder": lambda: WithMemory(decoder()),
    "decoder, time first": lambda: WithMemory(Turned(decoder(batch_first=False, norm_first=True))),
    "transformer": lambda: WithMemory(both(batch_first=True)),
    "transformer, time first": lambda: WithMemory(Turned(both())),
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but:UserWarning")
@pytest.mark.parametrize("make", TRANSFORMERS.values(), ids=TRANSFORMERS)
def test_transformers_are_clipped_as_in_a_loop(make: Callable[[], nn.Module]) -> None:
    assert_clips_like_a_loop(made(make), vectors())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
@pytest.mark.parametrize("nested", [True, False])
def test_an_encoder_with_padding_is_clipped_as_in_a_loop_and_measured_on_its_fast_path(nested: bool) -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(SIZE, 2, 8, dropout=0.0, batch_first=True)
            self.inner = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)

        def forward(self, inputs: Tensor) -> Tensor:
            nothing = (inputs == 0).all(2)
            outputs: Tensor = self.inner(inputs, src_key_padding_mask=nothing)
            return outputs * ~nothing[:, : outputs.shape[1], None]

    model = made(Encoder)
    # The longest is whole: PyTorch cuts off what is padding everywhere.
    inputs = vectors() * ~padding()[:, :, None]
    assert_clips_like_a_loop(model, inputs)
    model.eval()
    with torch.no_grad():
        wanted = model(inputs)
        with Clipping(model, max_grad_norm=1.0) as clipping:
            clipping.begin(BATCH)
            assert torch.equal(model(inputs), wanted)


def test_dropout_is_that_of_pytorch() -> None:
    model = made(lambda: encoder(dropout=0.3))
    torch.manual_seed(3)
    wanted = model(vectors())
    with Clipping(model, max_grad_norm=1.0) as clipping:
        clipping.begin(BATCH)
        torch.manual_seed(3)
        torch.testing.assert_close(model(vectors()), wanted, rtol=1e-12, atol=1e-12)


# --- while clipping is attached -------------------------------------------------------------------------------------


def test_checkpoints_are_those_of_pytorch_and_nothing_is_left() -> None:
    model = made(encoder)
    before = list(model.state_dict())
    with Clipping(model, max_grad_norm=1.0):
        assert list(model.state_dict()) == before
    assert all("forward" not in vars(part) for part in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("frozen", ["in_proj_weight", "in_proj_bias", "out_proj", "in_proj"])
def test_frozen_weights_stay_out_of_the_norm(frozen: str) -> None:
    model = made(lambda: Attention("another", add_bias_kv=True))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen not in name)
    assert_clips_like_a_loop(model, vectors())
    assert not all(parameter.requires_grad for parameter in model.parameters())


def test_attention_may_be_used_twice_and_share_its_weights() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = Attention(batch_first=True), Attention("another")
            self.other.attention.out_proj.weight = self.one.attention.out_proj.weight

        def forward(self, inputs: Tensor) -> Tensor:
            return self.one(self.other(self.one(inputs)))  # type: ignore[no-any-return]

    assert_clips_like_a_loop(made(Twice), vectors())


def test_hooks_change_what_they_change_without_privacy() -> None:
    model = made(KINDS["of itself"])
    model.attention.register_forward_hook(lambda layer, inputs, outputs: (2 * outputs[0], outputs[1]))
    assert_clips_like_a_loop(model, vectors())


def test_asking_for_gradients_of_inputs_is_not_training() -> None:
    def loss(module: Any, inputs: Tensor) -> Tensor:
        inputs = inputs.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(mean_of_squares(module, inputs), inputs)
        return mean_of_squares(module, (inputs + 0.1 * gradient.sign()).detach())

    assert_clips_like_a_loop(made(KINDS["time first"]), vectors(), loss)


# torch.backends.mkldnn.flags, on machines without Intel's GPUs
@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")
def test_half_precision_is_measured_in_single_precision() -> None:
    model = made(encoder).float()

    def loss(module: nn.Module, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return mean_of_squares(module, inputs)

    _, wanted = one_by_one(model, vectors().float(), 1.0)
    # Without oneDNN, whose kernels for bfloat16 need instructions that not every virtual machine has.
    with torch.backends.mkldnn.flags(enabled=False):
        _, found = in_one_pass(model, vectors().float(), 1.0, loss)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.0)


# --- refused --------------------------------------------------------------------------------------------------------


class Doubling(nn.MultiheadAttention):
    """Attention that is none."""

    def forward(self, *given: Any, **options: Any) -> Any:
        outputs, weights = super().forward(*given, **options)
        return 2 * outputs, weights


def with_adapter() -> nn.Module:
    attention = nn.MultiheadAttention(SIZE, 2)
    attention.out_proj = nn.Sequential(attention.out_proj)  # type: ignore[assignment]
    return attention


def with_hook() -> nn.Module:
    attention = nn.MultiheadAttention(SIZE, 2)
    attention.out_proj.weight.register_hook(lambda gradient: 2 * gradient)
    return attention


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Doubling(SIZE, 2), r"\(Doubling\): is an nn.MultiheadAttention with a forward of its own"),
        (with_adapter, r"\(MultiheadAttention\): has something else than a linear layer as 'out_proj'"),
        (with_hook, r"\(MultiheadAttention\): has hooks on the gradient of 'out_proj.weight'"),
        (
            lambda: parametrizations.spectral_norm(nn.MultiheadAttention(SIZE, 2), "in_proj_weight"),
            r"\(ParametrizedMultiheadAttention\): computes its weights from others",
        ),
    ],
)
def test_what_is_no_longer_attention_is_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ModelError, match=r"'0' " + message):
        Clipping(nn.Sequential(made(make)), max_grad_norm=1.0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_what_cannot_be_read_is_refused_by_name() -> None:
    model = made(lambda: nn.ModuleList([nn.MultiheadAttention(SIZE, 2, batch_first=True)]))
    attention: Any = model[0]  # type: ignore[index]
    signal = vectors()
    with Clipping(model, max_grad_norm=1.0) as clipping:
        clipping.begin(BATCH)
        with pytest.raises(ModelError, match=r"'0' \(MultiheadAttention\): was given a tensor \(6, 4\) as its queries"):
            attention(signal[0], signal[0], signal[0])
        nested = torch.nested.nested_tensor(list(signal))
        with pytest.raises(ModelError, match=r"was given a nested tensor as its queries. Give it a padded batch"):
            attention(nested, nested, nested)
        with pytest.raises(ModelError, match=r"its keys have the shape \(3, 6, 4\), where dimension 0 should be the 5"):
            attention(signal, signal[:3], signal[:3])
        with pytest.raises(RuntimeError, match="Need attn_mask if specifying the is_causal hint"):
            attention(signal, signal, signal, is_causal=True)


def test_inputs_that_change_and_gradients_of_gradients_are_refused() -> None:
    model = made(KINDS["of itself"])

    def in_place(module: Any, inputs: Tensor) -> Tensor:
        inputs = inputs.clone()
        outputs = module(inputs)
        inputs += outputs.detach()
        return (inputs + outputs).sum() / len(inputs)

    def penalty(module: Any, inputs: Tensor) -> Tensor:
        inputs = inputs.clone().requires_grad_()
        loss = mean_of_squares(module, inputs)
        (gradient,) = torch.autograd.grad(loss, inputs, create_graph=True)
        return loss + gradient.square().sum()

    with pytest.raises(ModelError, match=r"'attention' \(MultiheadAttention\): its inputs were changed in place"):
        in_one_pass(model, vectors(), 1.0, in_place)
    with pytest.raises(ModelError, match=r"'attention' \(MultiheadAttention\): .*create_graph=True"):
        in_one_pass(model, vectors(), 1.0, penalty)
