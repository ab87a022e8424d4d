"""A model is tried before anything is measured with it, and refused by name if it is not what it seems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad

from lightning_exposure import SecretFormat, SecretTree, extract, measure_exposure
from lightning_exposure.adapters import RecurrentAdapter, StatelessAdapter
from lightning_exposure.errors import ModelError
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.walks import score
from tests.adapters.hf_models import CHARS as HF_CHARS
from tests.adapters.hf_models import MODELS, two_way_bert, xlnet
from tests.toys import Constant, MergingTokenizer, Nested, Recurrent, Stateless, Table, sharpened

CHARS = CharTokenizer.from_text("my pin is 0123456789-z")
SIZE = CHARS.vocab_size
PIN = SecretFormat("my pin is ##-##")


class Network(nn.Module):
    """A healthy LSTM that returns logits only; the ways to spoil it are below."""

    def __init__(self, *, batch_first: bool = True, bidirectional: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(SIZE, 12)
        self.cell = nn.LSTM(12, 12, num_layers=2, batch_first=batch_first, bidirectional=bidirectional)
        self.out = nn.Linear(24 if bidirectional else 12, SIZE)

    def forward(self, tokens: Tensor) -> Any:
        logits: Tensor = self.out(self.cell(self.embed(tokens))[0])
        return logits


class Transformer(nn.Module):
    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(SIZE, 16)
        self.places = nn.Embedding(64, 16)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True), 2, enable_nested_tensor=False
        )
        self.out = nn.Linear(16, SIZE)
        self.causal = causal

    def forward(self, tokens: Tensor) -> Any:
        features = self.embed(tokens) + self.places(torch.arange(tokens.shape[1]))
        mask = torch.triu(torch.full((tokens.shape[1],) * 2, float("-inf"), dtype=features.dtype), 1)
        logits: Tensor = self.out(self.layers(features, mask=mask if self.causal else None))
        return logits


class Shifted(Network):
    """Shifts its input, as a decoder does that is given its own labels."""

    def forward(self, tokens: Tensor) -> Any:
        return super().forward(pad(tokens[:, :-1], (1, 0), value=0))


class ShiftedTwice(Network):
    def forward(self, tokens: Tensor) -> Any:
        return super().forward(pad(tokens, (2, 0), value=1)[:, :-2])


class Ahead(Network):
    """Gives the logits one position early."""

    def forward(self, tokens: Tensor) -> Any:
        return super().forward(pad(tokens[:, 1:], (0, 1), value=0))


class AlwaysDropped(Network):
    def forward(self, tokens: Tensor) -> Any:
        return self.out(dropout(self.cell(self.embed(tokens))[0], 0.1))


class Probabilities(Network):
    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens).softmax(-1)


class LastProbabilities(Network):
    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens)[:, -1].softmax(-1)


class OverTheBatch(Network):
    """Normalizes over the rows of a batch, in eval mode too."""

    def forward(self, tokens: Tensor) -> Any:
        features = self.cell(self.embed(tokens))[0]
        return self.out(features - features.mean(0, keepdim=True))


class KeepsItsState(Network):
    """Goes on where the last call ended."""

    hidden: Any = None

    def forward(self, tokens: Tensor) -> Any:
        if self.hidden is None or self.hidden[0].shape[1] != len(tokens):
            self.hidden = None
        features, self.hidden = self.cell(self.embed(tokens), self.hidden)
        return self.out(features)


class LastShifted(Network):
    """The logits of the last position alone, which does not see the last token."""

    def forward(self, tokens: Tensor) -> Any:
        return super().forward(pad(tokens[:, :-1], (1, 0), value=0))[:, -1:]


class TimeFirstLast(Network):
    """The logits of the last row, which it takes for the last token."""

    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens)


class StateButBothWays(nn.Module):
    """Carries the state of its forward direction; the backward one begins anew, so that the last logits are right."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SIZE, 12)
        self.there, self.back = (nn.GRU(12, 12, batch_first=True) for _ in range(2))
        self.out = nn.Linear(24, SIZE)

    def forward(self, tokens: Tensor, hidden: Any = None) -> Any:
        features = self.embed(tokens)
        there, hidden = self.there(features, hidden)
        back = self.back(features.flip(1))[0].flip(1)
        return self.out(torch.cat([there, back], -1)), hidden


class ByPlace(Network):
    """Encodes positions as if the first dimension were time."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(4096, 1, 12))

    def forward(self, tokens: Tensor) -> Any:
        return self.out(self.cell(self.embed(tokens) + self.places[: len(tokens)])[0])


class Percent(Network):
    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens).softmax(-1) * 100


class NegativeLogProbabilities(Network):
    def forward(self, tokens: Tensor) -> Any:
        return -super().forward(tokens).log_softmax(-1)


LIARS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "time first": (lambda: Network(batch_first=False), r"reads token ids as \(time, batch\).*time_first=True"),
    "bidirectional": (lambda: Network(bidirectional=True), r"is not causal.*cell is bidirectional"),
    "no mask": (lambda: Transformer(causal=False), "is not causal.*causal mask"),
    "state, both ways": (StateButBothWays, "is not causal"),
    "ahead": (Ahead, "is not causal"),
    "shifted": (Shifted, "shifts its input.*shift the labels"),
    "shifted twice": (ShiftedTwice, "shifts its input"),
    "last, shifted": (LastShifted, "shifts its input"),
    "dropout": (AlwaysDropped, r"different logits when it reads the same text again.*training=self.training"),
    "keeps its state": (KeepsItsState, "different logits.*begin every text anew"),
    "probabilities": (Probabilities, "returns probabilities.*Return logits"),
    "last probabilities": (LastProbabilities, "returns probabilities"),
    "percent": (Percent, "returns probabilities.*sum to 1.*Return logits"),
    "negative log-probabilities": (NegativeLogProbabilities, "negative log-probabilities.*Return their negative"),
    "over the batch": (OverTheBatch, "other rows are changed"),
    "by place": (ByPlace, "at another place of the batch"),
}


def made(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().eval()


@pytest.mark.parametrize("scaled", [1.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", LIARS)
def test_a_model_that_is_not_what_it_seems_is_refused_by_name(name: str, dtype: torch.dtype, scaled: float) -> None:
    make, message = LIARS[name]
    model = made(make).to(dtype)
    if scaled != 1.0:
        model = sharpened(model, seed=1, scale=scaled, dtype=dtype)
    with pytest.raises(ModelError, match=message):
        SecretTree(model, PIN, CHARS)


@pytest.mark.parametrize("make", [two_way_bert, xlnet])
def test_masked_language_models_are_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(ModelError, match="is not causal"):
        SecretTree(make(), SecretFormat("my pin is #-#"), HF_CHARS)


class Spoilt(nn.Module):
    """A healthy network whose logits are changed."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner = Network()
        self.change = change

    def forward(self, tokens: Tensor) -> Any:
        return self.change(self.inner(tokens))


class PaddingIsZero(Network):
    """Embeds token 0 as nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SIZE, 12, padding_idx=0)


class Experts(nn.Module):
    """Each token goes to one of two experts that are nearly alike, all tokens of an expert in one product."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SIZE, 12)
        self.cell = nn.GRU(12, 12, batch_first=True)
        self.gate = nn.Linear(12, 2)
        self.experts = nn.ModuleList(nn.Linear(12, SIZE) for _ in range(2))
        with torch.no_grad():
            self.gate.weight.mul_(1e-3)
            self.gate.bias.zero_()

    def forward(self, tokens: Tensor) -> Any:
        features = self.cell(self.embed(tokens))[0]
        flat = features.flatten(0, 1)
        chosen = self.gate(flat).argmax(-1)
        logits = flat.new_zeros(len(flat), SIZE)
        for number, expert in enumerate(self.experts):
            logits[chosen == number] = expert(flat[chosen == number])
        return logits.view(*tokens.shape, SIZE)


FIFTHS = torch.arange(SIZE) % 5 == 0

HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "network": Network,
    "transformer": lambda: Transformer(causal=True),
    "recurrent": lambda: Recurrent(SIZE),
    "nested": lambda: Nested(SIZE),
    "stateless": lambda: Stateless(SIZE),
    "constant": lambda: Constant(SIZE),
    "experts": Experts,
    "padding": PaddingIsZero,
    "log probabilities": lambda: Spoilt(lambda logits: logits.log_softmax(-1)),
    "last": lambda: Spoilt(lambda logits: logits[:, -1:]),
    "last, two dimensions": lambda: Spoilt(lambda logits: logits[:, -1]),
    "last, everywhere": lambda: Spoilt(lambda logits: logits[:, -1:].expand_as(logits)),
    "shifted logits": lambda: Spoilt(lambda logits: logits + 1e4),
    "scaled": lambda: Spoilt(lambda logits: logits * 20),
    "masked": lambda: Spoilt(
        lambda logits: logits.masked_fill(torch.arange(SIZE) % 5 == 0, torch.finfo(logits.dtype).min)
    ),
    "masked for good": lambda: Spoilt(lambda logits: logits.masked_fill(torch.arange(SIZE) % 5 == 0, float("-inf"))),
    "barely moves": lambda: Spoilt(lambda logits: logits * 1e-6 + torch.arange(SIZE).to(logits)),
    "tiny": lambda: Spoilt(lambda logits: logits * 1e-12),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", HEALTHY)
def test_there_are_no_false_alarms(name: str, dtype: torch.dtype) -> None:
    for seed in range(4):
        model = made(HEALTHY[name], seed).to(dtype)
        SecretTree(model, PIN, CHARS)
        SecretTree(sharpened(model, seed, dtype=dtype), PIN, CHARS)


def after_three(prefix: str) -> list[float]:
    favourite = sum(map(int, prefix)) % 10
    return [0.1] * 10 if len(prefix) < 3 else [0.05 + 0.05 * (digit == favourite) for digit in range(10)]


def after_sevens(prefix: str) -> list[float]:
    return [0.1] * 10 if prefix[:3] != "777" else [0.01] * 9 + [0.9]


def the_last_but_one(prefix: str) -> list[float]:
    return [0.1] * 10 if len(prefix) < 2 else [0.01 + 0.9 * (str(digit) == prefix[-2]) for digit in range(10)]


@pytest.mark.parametrize("digits", [after_three, after_sevens, the_last_but_one])
def test_models_that_ignore_most_of_what_they_read_are_fine(digits: Any) -> None:
    SecretTree(Table(CHARS, digits), SecretFormat("my pin is ####"), CHARS)


def test_a_secret_of_one_token_and_a_root_of_one_token_can_be_tried() -> None:
    tokenizer = MergingTokenizer("p0123456789")
    for model in (Network(), Recurrent(SIZE)):
        SecretTree(model, SecretFormat("p#"), tokenizer)
    with pytest.raises(ModelError, match=r"other rows|time, batch"):
        SecretTree(Network(batch_first=False), SecretFormat("p#"), tokenizer)


def test_callers_hear_of_it_before_any_number() -> None:
    with pytest.raises(ModelError, match="shifts its input"):
        measure_exposure(SecretTree(made(Shifted), PIN, CHARS), ["my pin is 12-34"])
    with pytest.raises(ModelError, match="is not causal"):
        extract(SecretTree(StatelessAdapter(made(lambda: Network(bidirectional=True))), PIN, CHARS))


def test_the_remedy_for_time_first_works() -> None:
    right = made(Network)
    turned = made(lambda: Network(batch_first=False))
    turned.load_state_dict(right.state_dict())
    secrets = PIN.sample(5, seed=0)
    costs = score(SecretTree(StatelessAdapter(turned, time_first=True), PIN, CHARS), secrets).costs
    assert costs == pytest.approx(score(SecretTree(right, PIN, CHARS), secrets).costs, abs=1e-4)


class Own:
    """A StepModel written by hand, around an adapter."""

    def __init__(self, **changes: Any) -> None:
        self._inner = RecurrentAdapter(made(lambda: Recurrent(SIZE)))
        self.module = self._inner.module
        for name in ("start", "step", "select", "concatenate", "bytes_of"):
            setattr(self, name, changes.get(name, lambda inner: inner)(getattr(self._inner, name)))


def test_a_step_model_of_ones_own_is_tried_through_its_steps() -> None:
    SecretTree(Own(), PIN, CHARS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": lambda step: lambda state, tokens: (step(state, tokens)[0], state)}, "read in parts"),
        ({"select": lambda select: lambda state, rows: select(state, rows.flip(0))}, "read in parts|other rows"),
        ({"concatenate": lambda join: lambda states: join(states[::-1])}, "read in parts|other rows"),
        ({"step": lambda step: lambda state, tokens: step(state, tokens.roll(1))}, "read in parts|other rows"),
        ({"start": lambda start: lambda tokens: _noisy(*start(tokens))}, "different logits"),
        ({"start": lambda start: lambda tokens: (start(tokens)[0].softmax(-1), start(tokens)[1])}, "probabilities"),
    ],
    ids=["forgets", "selects", "joins", "rolls", "noise", "probabilities"],
)
def test_a_step_model_that_reads_wrongly_is_refused(change: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        SecretTree(Own(**change), PIN, CHARS)  # type: ignore[arg-type]


def _noisy(logits: Tensor, state: Any) -> tuple[Tensor, Any]:
    return logits + torch.randn_like(logits), state


class Counting(Network):
    """Changes itself when it reads: an attribute, a buffer in place, a buffer for another, a random number."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("total", torch.zeros(1))
        self.register_buffer("mask", torch.zeros(1))
        self.lengths: list[int] = []

    def forward(self, tokens: Tensor) -> Any:
        self.calls += 1
        self.lengths.append(tokens.shape[1])
        self.total += 1
        self.mask = torch.zeros(tokens.shape[1])
        torch.rand(3)
        return super().forward(tokens)


def test_the_trial_leaves_no_trace_and_takes_a_handful_of_passes() -> None:
    model = made(Counting).train()
    model.cell.eval()
    adapter = StatelessAdapter(model)
    torch.manual_seed(5)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    SecretTree(adapter, PIN, CHARS)
    assert torch.equal(torch.rand(3), drawn)
    assert (model.calls, model.total.item(), model.mask.shape) == (0, 0, (1,))
    assert model.training
    assert not model.cell.training
    assert 5 <= len(model.lengths) <= 10
    assert max(model.lengths) == len("my pin is 12-3")  # the last token is never read


def test_a_model_that_cannot_read_the_longest_secret_says_so_before_any_number() -> None:
    class Short(Network):
        def forward(self, tokens: Tensor) -> Any:
            assert tokens.shape[1] <= 12, "block size"
            return super().forward(tokens)

    tree = SecretTree(Short(), PIN, CHARS)
    with pytest.raises(ModelError, match=r"failed on secrets of 14 tokens.*block size.*context="):
        measure_exposure(tree, ["my pin is 12-34"])
    assert score(SecretTree(Short(), PIN, CHARS, context=12), ["my pin is 12-34"]).costs[0] > 0


def test_a_mask_that_ends_too_early_is_found_at_the_length_of_the_longest_secret() -> None:
    class Forgetful(Transformer):
        def forward(self, tokens: Tensor) -> Any:
            self.causal = tokens.shape[1] <= 12
            return super().forward(tokens)

    SecretTree(made(lambda: Forgetful(causal=True)), SecretFormat("my pin is #"), CHARS)
    with pytest.raises(ModelError, match="is not causal"):
        SecretTree(made(lambda: Forgetful(causal=True)), PIN, CHARS)


@pytest.mark.parametrize("name", MODELS)
def test_hugging_face_models_pass(name: str) -> None:
    SecretTree(MODELS[name][0](), SecretFormat("my pin is #-#"), HF_CHARS)


class ShortMemory(nn.Module):
    """Sees all tokens that it is given at once, but hands on only the last eight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(SIZE, 8), nn.Linear(8, SIZE)

    def forward(self, tokens: Tensor, cache: Any = None) -> Any:
        features = self.embed(tokens)
        seen = features if cache is None else torch.cat([cache, features], dim=1)
        sums = torch.cumsum(torch.tanh(seen), dim=1)[:, -tokens.shape[1] :]
        return self.out(sums), seen[:, -8:]


def test_a_state_that_forgets_is_refused_where_secrets_are_long_enough_to_show_it() -> None:
    model = sharpened(ShortMemory(), seed=0)
    assert isinstance(SecretTree(model, SecretFormat("pin ##"), CHARS).model, RecurrentAdapter)
    with pytest.raises(ModelError, match=r"10 \+ 4 tokens are read in parts.*StatelessAdapter\(module\)"):
        SecretTree(model, PIN, CHARS)
    SecretTree(StatelessAdapter(model), PIN, CHARS)


def test_rounding_that_a_network_amplifies_is_no_mistake() -> None:
    model = sharpened(Recurrent(SIZE, nn.RNN, width=48), seed=0, scale=8.0, dtype=torch.float32)
    SecretTree(model, SecretFormat("my pin is " + "#" * 40), CHARS)
