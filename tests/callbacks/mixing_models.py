"""Modules whose examples mix, each in its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning as L  # noqa: N812
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, Dataset

RECORDS, BATCH, WIDTH, TIME, VOCAB = 64, 16, 6, 5, 11
PAD = -100


def records(seed: int = 0) -> list[dict[str, Tensor]]:
    """Vectors, a class, and tokens of different lengths with padding."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(RECORDS):
        length = int(torch.randint(1, TIME + 1, (), generator=generator))
        tokens = torch.randint(VOCAB, (TIME,), generator=generator)
        labels = tokens.clone()
        labels[length:] = PAD
        made.append(
            {
                "x": torch.randn(WIDTH, generator=generator),
                "y": torch.randint(3, (), generator=generator),
                "tokens": tokens,
                "labels": labels,
            }
        )
    return made


class Items(Dataset[Any]):
    def __init__(self, change: Callable[[Any], Any] = lambda item: item) -> None:
        self.items = [change(item) for item in records()]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Data(L.LightningDataModule):
    def __init__(self, dataset: Any = None, **options: Any) -> None:
        super().__init__()
        self.dataset, self.options = dataset or Items(), options

    def train_dataloader(self) -> Any:
        return DataLoader(self.dataset, batch_size=BATCH, shuffle=True, **self.options)


class Base(L.LightningModule):
    """Classifies vectors; subclasses say how."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(WIDTH, 8), nn.Linear(8, 3)
        self.embed, self.out = nn.Embedding(VOCAB, 8), nn.Linear(8, VOCAB)
        used = (self.embed, self.out) if self.reads_tokens else (self.body, self.head)
        for part in {self.body, self.head, self.embed, self.out} - set(used):
            part.requires_grad_(False)

    reads_tokens = False

    def hidden(self, x: Tensor) -> Tensor:
        return self.body(x).tanh()

    def loss(self, batch: Any) -> Tensor:
        return functional.cross_entropy(self.head(self.hidden(batch["x"])), batch["y"])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.05)


class Tokens(Base):
    reads_tokens = True

    def logits(self, batch: Any) -> Tensor:
        return self.out(self.embed(batch["tokens"]).tanh())


# ---- they mix ---------------------------------------------------------------------------------------


class TokenMean(Tokens):
    def loss(self, batch: Any) -> Tensor:
        return functional.cross_entropy(self.logits(batch).transpose(1, 2), batch["labels"], ignore_index=PAD)


class MeanSubtracted(Base):
    def hidden(self, x: Tensor) -> Tensor:
        made = self.body(x)
        return (made - made.mean(0)).tanh()


class SubtractsInAStep(Base):
    def loss(self, batch: Any) -> Tensor:
        x = batch["x"] - batch["x"].mean(0)
        return functional.cross_entropy(self.head(self.hidden(x)), batch["y"])


class Sorts(Base):
    """Healthy before the sorting and after it, but the layers see the examples in different orders."""

    def loss(self, batch: Any) -> Tensor:
        hidden = self.hidden(batch["x"])
        order = hidden[:, 0].argsort()
        return functional.cross_entropy(self.head(hidden[order]), batch["y"][order])


class Sums(Base):
    def loss(self, batch: Any) -> Tensor:
        return functional.cross_entropy(self.head(self.hidden(batch["x"])), batch["y"], reduction="sum")


class Contrastive(Base):
    def loss(self, batch: Any) -> Tensor:
        codes = functional.normalize(self.head(self.hidden(batch["x"])), dim=1)
        return functional.cross_entropy(codes @ codes.T.detach() * 5, torch.arange(len(codes)))


class BatchWeights(Base):
    def loss(self, batch: Any) -> Tensor:
        losses = functional.cross_entropy(self.head(self.hidden(batch["x"])), batch["y"], reduction="none")
        weights = losses.detach().softmax(0)
        return (losses * weights).sum()


class ClassWeights(Base):
    """`cross_entropy(weight=...)` divides by the sum of the weights of the batch."""

    def loss(self, batch: Any) -> Tensor:
        logits = self.head(self.hidden(batch["x"]))
        return functional.cross_entropy(logits, batch["y"], weight=torch.tensor([1.0, 5.0, 20.0]))


class Normalizes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()


class ByHandBatchNorm(Base):
    def __init__(self) -> None:
        super().__init__()
        self.normalizes = Normalizes()

    def hidden(self, x: Tensor) -> Tensor:
        return self.normalizes(self.body(x)).tanh()


class _Mix(torch.autograd.Function):
    """Healthy forward, but gradients are averaged over the batch on their way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.mean(0, keepdim=True).expand_as(grad).clone()


class MixesBackwards(Base):
    def hidden(self, x: Tensor) -> Tensor:
        mix: Any = _Mix.apply
        return mix(self.body(x).tanh())


class CarriesOver(Base):
    """The last batch has a part in this one."""

    memory: Tensor | None = None

    def hidden(self, x: Tensor) -> Tensor:
        made = self.body(x).tanh()
        past = self.memory
        self.memory = made.detach().mean(0)
        return made if past is None else made + past


class Attends(Base):
    """Attention over the batch."""

    def hidden(self, x: Tensor) -> Tensor:
        made = self.body(x)
        return (made @ made.T).softmax(1) @ made


class NoisyAndMixing(MeanSubtracted):
    def hidden(self, x: Tensor) -> Tensor:
        return functional.dropout(super().hidden(x), 0.3)


class RunningQueue(Base):
    """Negatives from former batches, in a buffer that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.randn(4, 3), persistent=False)

    def loss(self, batch: Any) -> Tensor:
        codes = self.head(self.hidden(batch["x"]))
        loss = (codes @ self.queue.T).exp().sum(1).log().mean() - codes[:, 0].mean()
        self.queue = codes.detach().mean(0, keepdim=True).expand(4, 3).clone()
        return loss


class MixesManyOnly(Base):
    """Nothing is seen of it in a few examples of a batch."""

    def loss(self, batch: Any) -> Tensor:
        x = batch["x"]
        x = x - x.mean(0) if len(x) > 6 else x
        return functional.cross_entropy(self.head(self.hidden(x)), batch["y"])


class FarNeighbours(Base):
    """An example is kept away from the fifth of its neighbours and those after it, if there are as many."""

    def loss(self, batch: Any) -> Tensor:
        hidden = self.hidden(batch["x"])
        apart = (hidden[:, None] - hidden[None]).square().sum(2)
        far = apart.sort(1).values[:, 5:8]
        return functional.cross_entropy(self.head(hidden), batch["y"]) + far.sum() / len(hidden)


class HardExamples(Base):
    """Those with the largest losses count, the others do not: each that counts has the gradient it has alone."""

    def loss(self, batch: Any) -> Tensor:
        losses = functional.cross_entropy(self.head(self.hidden(batch["x"])), batch["y"], reduction="none")
        if len(losses) >= 5:
            losses = losses * (losses >= losses.topk(len(losses) // 4 + 1).values[-1])
        return losses.mean()


class SlowMean(Base):
    """A running mean that a batch moves by very little."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)

    def hidden(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 1e-3)
        return super().hidden(x - self.mean)


class SharedPositions(Tokens):
    """As many steps as examples, and positions of shape (time,), which look like one of each example."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(RECORDS, 8)

    def loss(self, batch: Any) -> Tensor:
        steps = torch.arange(len(batch["tokens"]))
        hidden = self.embed(batch["tokens"][:, steps % TIME]) + self.places(steps)
        return functional.cross_entropy(self.out(hidden.tanh()).mean(1), batch["tokens"][:, 0])


class SortsForPacking(Tokens):
    """The recurrent layer alone sees the examples in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(8, 8, batch_first=True)

    def loss(self, batch: Any) -> Tensor:
        lengths, order = (batch["labels"] != PAD).sum(1).sort(descending=True)
        packed = pack_padded_sequence(self.embed(batch["tokens"])[order], lengths, batch_first=True)
        hidden, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=TIME)
        return functional.cross_entropy(self.out(hidden[order.argsort()]).mean(1), batch["tokens"][:, 0])


MIXING = {
    TokenMean: r"weighs each example .* lightning_exposure\.privacy\.per_example_loss\(logits, labels\)",
    MeanSubtracted: r"mixed by the training step, before 'head' is called",
    SubtractsInAStep: r"mixed by the training step, before 'body' is called",
    Sorts: r"mixed by the training step, before 'head' is called",
    Sums: r"loss_reduction is 'mean', but the loss is the sum .* Use loss_reduction='sum'",
    Contrastive: r"mixed by the loss, which compares examples with each other",
    BatchWeights: r"the loss weighs each example by something of the others",
    ClassWeights: r"the loss weighs each example by something of the others",
    ByHandBatchNorm: r"mixed by 'normalizes' \(Normalizes\)",
    MixesBackwards: r"depends on the other examples of its batch",
    CarriesOver: r"carries a state over from one batch to the next",
    Attends: r"mixed by the training step, before 'head' is called",
    NoisyAndMixing: r"mixed by the training step, before 'head' is called",
    RunningQueue: r"carries a state over from one batch to the next",
    MixesManyOnly: r"mixed by the training step, before 'body' is called",
    FarNeighbours: r"mixed by the loss, which compares examples with each other",
    HardExamples: r"depends on the other examples of its batch",
    SlowMean: r"carries a state over from one batch to the next",
    SharedPositions: r"and only in 'places' \(Embedding\): it is given .* Look up positions\[None\]",
    SortsForPacking: r"and only in 'rnn' \(GRU\): it is given the examples in another order .*enforce_sorted=False",
}
