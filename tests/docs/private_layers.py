"""The table of docs/private-layers.md, made by asking the code about a layer of every kind.

`python -m tests.docs.private_layers` writes it into the page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import Tensor, nn

from lightning_exposure.privacy import layer_treatments
from tests.docs.running import ROOT
from tests.privacy.models import BATCH, ROWS, SIZE, TIME, Scale, tokens, vectors

PAGE = ROOT / "docs" / "private-layers.md"
BEGIN, END = "<!-- layers -->", "<!-- end of layers -->"


class Whole(nn.Module):
    """A layer that is given several tensors, as a module of one."""

    def __init__(self, inner: nn.Module, inputs: int = 1) -> None:
        super().__init__()
        self.inner, self.inputs = inner, inputs

    def forward(self, signal: Tensor) -> Tensor:
        outputs: Any = self.inner(*[signal] * self.inputs)
        found: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
        return found


class Buffered(Scale):
    """Neither this library nor Opacus knows it, and it has a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.ones(SIZE))


class WithParameter(nn.Module):
    """Holds a parameter beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.temperature = nn.Linear(SIZE, SIZE), nn.Parameter(torch.ones(1))


def _transformers(name: str) -> Callable[[], nn.Module]:
    """A layer of transformers with a forward of its own."""

    def make() -> nn.Module:
        if name == "Conv1D":
            from transformers.pytorch_utils import Conv1D

            return Conv1D(3, SIZE)
        if name == "LlamaRMSNorm":
            from transformers.models.llama.modeling_llama import LlamaRMSNorm

            return LlamaRMSNorm(SIZE)
        if name == "Gemma3RMSNorm":
            from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm

            return Gemma3RMSNorm(SIZE)
        from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

        return Gemma3TextScaledWordEmbedding(ROWS, SIZE, 0, 2.0)

    return make


def _attention(layer: Callable[..., nn.Module], **options: Any) -> Callable[[], nn.Module]:
    return lambda: layer(SIZE, 2, dim_feedforward=6, dropout=0.0, batch_first=True, **options)


def _encoder() -> nn.Module:
    return nn.TransformerEncoder(_attention(nn.TransformerEncoderLayer)(), 1, enable_nested_tensor=False)  # type: ignore[arg-type]


def _decoder() -> nn.Module:
    return nn.TransformerDecoder(_attention(nn.TransformerDecoderLayer)(), 1)  # type: ignore[arg-type]


def _transformer() -> nn.Module:
    return _attention(nn.Transformer, num_encoder_layers=1, num_decoder_layers=1)()


STEPS, PLANE, ROOM = vectors(BATCH, SIZE, TIME), vectors(BATCH, SIZE, 3, 3), vectors(BATCH, SIZE, 3, 3, 3)
Sample = tuple[str, Callable[[], nn.Module], Tensor | None, int]
"""What it is called, how it is made, what it is shown (None: it is refused) and how many times."""

SAMPLES: tuple[Sample, ...] = (
    ("nn.Linear", lambda: nn.Linear(SIZE, 3), vectors(), 1),
    ("nn.Embedding", lambda: nn.Embedding(ROWS, SIZE), tokens(), 1),
    ("nn.Conv1d", lambda: nn.Conv1d(SIZE, 3, 2), STEPS, 1),
    ("nn.Conv1d with groups", lambda: nn.Conv1d(SIZE, 4, 2, groups=2), STEPS, 1),
    ("nn.Conv2d", lambda: nn.Conv2d(SIZE, 3, 2), PLANE, 1),
    ("nn.Conv3d", lambda: nn.Conv3d(SIZE, 3, 2), ROOM, 1),
    ("nn.ConvTranspose1d", lambda: nn.ConvTranspose1d(SIZE, 3, 2), STEPS, 1),
    ("nn.ConvTranspose2d", lambda: nn.ConvTranspose2d(SIZE, 3, 2), PLANE, 1),
    ("nn.ConvTranspose3d", lambda: nn.ConvTranspose3d(SIZE, 3, 2), ROOM, 1),
    ("nn.LayerNorm", lambda: nn.LayerNorm(SIZE), vectors(), 1),
    ("nn.RMSNorm", lambda: nn.RMSNorm(SIZE), vectors(), 1),
    ("nn.GroupNorm", lambda: nn.GroupNorm(2, SIZE), STEPS, 1),
    ("nn.InstanceNorm1d", lambda: nn.InstanceNorm1d(SIZE, affine=True), STEPS, 1),
    ("nn.InstanceNorm2d", lambda: nn.InstanceNorm2d(SIZE, affine=True), PLANE, 1),
    ("nn.InstanceNorm3d", lambda: nn.InstanceNorm3d(SIZE, affine=True), ROOM, 1),
    ("nn.PReLU", lambda: nn.PReLU(SIZE), STEPS, 1),
    ("nn.LSTM", lambda: nn.LSTM(SIZE, 3, 2, batch_first=True, bidirectional=True), vectors(), 1),
    ("nn.LSTM with projections", lambda: nn.LSTM(SIZE, 3, proj_size=2, batch_first=True), vectors(), 1),
    ("nn.GRU", lambda: nn.GRU(SIZE, 3, batch_first=True, bidirectional=True), vectors(), 1),
    ("nn.RNN", lambda: nn.RNN(SIZE, 3, batch_first=True), vectors(), 1),
    ("nn.MultiheadAttention", lambda: nn.MultiheadAttention(SIZE, 2, batch_first=True), vectors(), 3),
    ("nn.TransformerEncoderLayer", _attention(nn.TransformerEncoderLayer), vectors(), 1),
    ("nn.TransformerEncoder", _encoder, vectors(), 1),
    ("nn.TransformerDecoderLayer", _attention(nn.TransformerDecoderLayer), vectors(), 2),
    ("nn.TransformerDecoder", _decoder, vectors(), 2),
    ("nn.Transformer", _transformer, vectors(), 2),
    ("the linear layer of GPT-2 (Conv1D)", _transformers("Conv1D"), vectors(), 1),
    ("the norms of Llama, Mistral, Qwen (RMSNorm)", _transformers("LlamaRMSNorm"), vectors(), 1),
    ("the norms of Gemma (RMSNorm)", _transformers("Gemma3RMSNorm"), vectors(), 1),
    ("the table of Gemma (scaled)", _transformers("Embedding"), tokens(), 1),
    ("Opacus' DPLSTM", lambda: DPLSTM(SIZE, 3, batch_first=True), vectors(), 1),
    ("Opacus' DPMultiheadAttention", lambda: DPMultiheadAttention(SIZE, 2, batch_first=True), vectors(), 3),
    ("a layer of yours, one tensor in and one out", Scale, vectors(), 1),
    ("nn.BatchNorm1d", lambda: nn.BatchNorm1d(SIZE), None, 1),
    ("nn.BatchNorm2d", lambda: nn.BatchNorm2d(SIZE), None, 1),
    ("nn.BatchNorm3d", lambda: nn.BatchNorm3d(SIZE), None, 1),
    ("nn.SyncBatchNorm", lambda: nn.SyncBatchNorm(SIZE), None, 1),
    (
        "nn.InstanceNorm1d that tracks statistics",
        lambda: nn.InstanceNorm1d(SIZE, affine=True, track_running_stats=True),
        None,
        1,
    ),
    ("nn.EmbeddingBag", lambda: nn.EmbeddingBag(ROWS, SIZE), None, 1),
    ("nn.Embedding with max_norm", lambda: nn.Embedding(ROWS, SIZE, max_norm=1.0), None, 1),
    ("nn.Bilinear", lambda: nn.Bilinear(SIZE, SIZE, 3), None, 1),
    ("nn.LSTMCell", lambda: nn.LSTMCell(SIZE, 3), None, 1),
    ("nn.GRUCell", lambda: nn.GRUCell(SIZE, 3), None, 1),
    ("nn.RNNCell", lambda: nn.RNNCell(SIZE, 3), None, 1),
    ("nn.ParameterList", lambda: nn.ParameterList([torch.ones(2)]), None, 1),
    ("nn.ParameterDict", lambda: nn.ParameterDict({"weight": torch.ones(2)}), None, 1),
    ("nn.LazyLinear, and all that is lazy", lambda: nn.LazyLinear(3), None, 1),
    ("a parametrized layer", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(SIZE, 3)), None, 1),
    ("a layer of yours with a buffer", Buffered, None, 1),
    ("a module with a parameter beside its layers", WithParameter, None, 1),
)


def made_of(sample: Sample) -> nn.Module:
    """A model of the layer alone."""
    _, make, _, inputs = sample
    torch.manual_seed(0)
    return Whole(make(), inputs)


def row(sample: Sample) -> tuple[str, str, str]:
    """What the code says about it: the layer, whether it is supported, and how or why not."""
    found = layer_treatments(made_of(sample))
    how = list(dict.fromkeys(treatment.how for treatment in found))
    return sample[0], "yes" if all(treatment.supported for treatment in found) else "no", "; ".join(how)


def table() -> str:
    """The rows, as the page has them."""
    rows = [("layer", "private", "how, or why not"), ("---", "---", "---"), *map(row, SAMPLES)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def on_page() -> str:
    """What the page has."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
