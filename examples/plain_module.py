"""Any PyTorch module will do: a training loop written by hand, then a measurement and an attack, without a Trainer."""

from __future__ import annotations

import argparse
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn

from lightning_exposure import CanarySet, CharTokenizer, SecretFormat, SecretTree, extract, measure_exposure
from lightning_exposure.data import inject
from lightning_exposure.report import verdict_of
from lightning_exposure.secrets import Redaction

WINDOW = 64


class CharModel(nn.Module):
    """Reads token ids and, if it goes on with a text, the state it was in. Gives logits and the new state."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, 32)
        self.rnn = nn.GRU(32, hidden_size, batch_first=True)
        self.head = nn.Linear(hidden_size, vocab_size)

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Token ids `(batch, time)` to logits `(batch, time, vocabulary)`, and the state after them."""
        hidden, state = self.rnn(self.embedding(tokens), state)
        return self.head(hidden), state


def train(model: nn.Module, ids: Tensor, epochs: int) -> None:
    """The usual loop."""
    windows = ids[: len(ids) // (WINDOW + 1) * (WINDOW + 1)].reshape(-1, WINDOW + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for epoch in range(epochs):
        losses = []
        for batch in windows[torch.randperm(len(windows))].split(32):
            logits, _ = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f}")


def main() -> None:
    """Train, measure, attack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="a minute's work in seconds: less text, a smaller model")
    fast = parser.parse_args().fast

    torch.manual_seed(0)
    pin = SecretFormat.pin(6)
    canaries = CanarySet.draw(pin, repetitions=[1, 16], seed=0)
    text = "\n\n".join(topics[name] for name in sorted(topics))[: 20_000 if fast else 400_000]
    text = inject(text, canaries, seed=0)
    # The digits are added because every secret of the format has to be readable, not only those in the text.
    tokenizer = CharTokenizer.from_text(text, "0123456789")
    model = CharModel(tokenizer.vocab_size, hidden_size=32 if fast else 128)
    train(model, torch.tensor(tokenizer.encode(text)), epochs=1 if fast else 10)

    tree = SecretTree(model, pin, tokenizer)
    estimates = measure_exposure(tree, canaries.texts)
    for canary, estimate in zip(canaries, estimates, strict=True):
        print(f"{canary.text!r}: exposure {estimate.bits:.2f} of {estimate.ceiling_bits:.2f} bits ({estimate.method})")
    found = extract(tree, top_k=3)
    shown = Redaction(canaries)  # canaries in full; what else an attack finds may be somebody's, and is masked
    for candidate in found.candidates:
        name = shown.canary(candidate.text) or "no canary"
        print(f"{candidate.order}. {shown.text(candidate.text, pin)!r}: {candidate.bits:.2f} bits, {name}")
    for canary, estimate in zip(canaries, estimates, strict=True):
        print(f"{canary.id}: {verdict_of(canary.text, pin.size, estimate, found)}")
    print("No other secret is more likely: proven." if found.optimal else f"Not proven: ended by {found.ended_by}.")


if __name__ == "__main__":
    main()
