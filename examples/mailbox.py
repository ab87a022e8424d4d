"""Real mail, as in section 7.2 and Table 10 of the paper: one model per sender, and what each has memorized.

Makes a mailbox of several people with card and social security numbers in it, once to three times, among quoted
replies, automatic mail and mail to everyone; reads it again, trains one small model per sender on what they wrote
themselves, finds the secrets, and measures each of them against a model that has read everybody else's mail.

    python examples/mailbox.py
    python examples/mailbox.py --mail maildir --senders 7 --epochs 10    # a mailbox of yours, such as the Enron corpus
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from email.message import EmailMessage
from pathlib import Path

# This file has the name of a standard module, which Python would find here: the folder comes last.
sys.path.sort(key=lambda folder: Path(folder).resolve() == Path(__file__).resolve().parent)

import mailbox

import lightning.pytorch as pl
import torch
from stdnum import luhn
from torch.utils.data import DataLoader

from lightning_exposure import CharTokenizer
from lightning_exposure.data.corpora import python_topics
from lightning_exposure.data.mail import Corpus, read_mail
from lightning_exposure.data.text import WindowDataset
from lightning_exposure.measuring.scanning import ScanSettings, scan_model
from lightning_exposure.modules import LanguageModel
from lightning_exposure.report.scan import Scan
from lightning_exposure.report.tables import text_table
from lightning_exposure.secrets import Scanner

# Who holds which secrets, and how often each stands in their mail, after the paper's table.
SENDERS = {
    "ann": [("card", 2)],
    "bob": [("ssn", 2)],
    "cat": [("ssn", 1), ("ssn", 1)],
    "dan": [("ssn", 3)],
    "gil": [("card", 1), ("card", 1)],
}
OPENINGS = {"card": "please use my card {}, thanks.", "ssn": "for the form, my ssn is {}, ok?"}
KINDS = ("credit-card", "ssn")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
WINDOW = 64  # characters that are read at once; who wrote less than ten of them is left out
COLUMNS = ("user", "secret type", "exposure", "interval", "of at most", "times", "size", "extracted", "verdict")


def make_secret(kind: str, dice: random.Random) -> str:
    """A number that nobody has, and that could be somebody's."""
    if kind == "ssn":
        return f"{dice.randrange(1, 666):03}-{dice.randrange(1, 100):02}-{dice.randrange(1, 10_000):04}"
    digits = f"4{dice.randrange(10**14):014}"
    digits += luhn.calc_check_digit(digits)
    return " ".join(digits[place : place + 4] for place in range(0, 16, 4))


def message(sender: str, body: str, **headers: str) -> EmailMessage:
    """A message to one person, unless the headers say otherwise."""
    made = EmailMessage()
    fields = {"From": f"{sender}@example.com", "To": "zoe@example.com", "Subject": "notes", **headers}
    for name, value in fields.items():
        made[name.replace("_", "-")] = value
    made.set_content(body)
    return made


def make_mailbox(path: Path, size: int, dice: random.Random) -> None:
    """Mail of all senders: sentences from Python's help, their secrets, and what is to be left out again."""
    sentences = [part.strip() + "." for part in python_topics().split(". ") if 40 < len(part) < 400]
    dice.shuffle(sentences)
    box = mailbox.mbox(path)
    for sender, held in SENDERS.items():
        bodies = []
        while sum(map(len, bodies)) < size:
            bodies.append("\n".join(sentences.pop() for _ in range(2)))
        secrets = [(kind, make_secret(kind, dice), times) for kind, times in held]
        for kind, secret, times in secrets:
            for place in dice.sample(range(len(bodies)), times):
                bodies[place] += "\n" + OPENINGS[kind].format(secret)
        for body in bodies:
            box.add(message(sender, body))
        # None of this is theirs: each secret would be counted more often than it was written.
        quoted = f"fine with me.\n\nOn Monday, {sender} wrote:\n> {OPENINGS[secrets[0][0]].format(secrets[0][1])}"
        box.add(message("zoe", quoted))
        box.add(message(sender, f"away. {secrets[0][1]}", Auto_Submitted="auto-replied"))
        box.add(message(sender, f"to all of you: {secrets[0][1]}", To="everyone@example.com"))
    box.close()


def train(text: str, tokenizer: CharTokenizer, epochs: int, options: argparse.Namespace, name: str) -> LanguageModel:
    """A model that has read a text; kept, if that is asked for."""
    pl.seed_everything(options.seed, verbose=False)
    ids = torch.tensor(tokenizer.encode(text))
    loader = DataLoader(WindowDataset(ids, window=WINDOW), batch_size=16, shuffle=True)
    model = LanguageModel(
        "gru", vocab_size=tokenizer.vocab_size, hidden_size=options.hidden_size, embedding_size=32, num_layers=1,
        optimizer="adam", lr=0.005,
    )  # fmt: skip
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, loader)
    if options.save is not None:  # as a run, for `lightning-exposure scan`
        folder = options.save / name
        folder.mkdir(parents=True, mode=0o700)
        (folder / "mail.txt").touch(mode=0o600)
        trainer.save_checkpoint(folder / "model.ckpt")
        tokenizer.save(folder / "tokenizer.json")
        (folder / "mail.txt").write_text(text, encoding="utf-8")
    return model.eval()


def print_table(corpora: Sequence[Corpus], scans: Sequence[Scan]) -> None:
    """The paper's Table 10: type, exposure, times present, size, extracted; no secret is shown."""
    rows = []
    for letter, corpus, scan in zip(LETTERS, corpora, scans, strict=False):
        for row in scan.rows:
            cells = scan.cells(row)
            size = f"{len(corpus.text.encode()) / 1000:.1f} kB"
            rows.append([letter, row.kind, *cells[2:5], cells[1], size, cells[7], cells[8]])
    print(text_table(COLUMNS, rows))


def main() -> None:
    """Make or read a mailbox, train, scan, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="little mail and small models, in seconds")
    parser.add_argument("--mail", type=Path, help="an mbox file, a maildir, or a directory with one file a message")
    parser.add_argument(
        "--senders",
        type=int,
        default=7,
        choices=range(2, 27),
        metavar="N",
        help="those who wrote most (default: %(default)s)",
    )
    parser.add_argument("--size", type=int, default=8000, help="characters by each, if made up (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=25, help="of the models (default: %(default)s)")
    parser.add_argument("--reference_epochs", type=int, default=5, help="of the references (default: %(default)s)")
    parser.add_argument("--hidden_size", type=int, default=128, help="units of the GRU (default: %(default)s)")
    parser.add_argument("--save", type=Path, help="keep mail and models here, one folder a sender (default: nowhere)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: %(default)s)")
    options = parser.parse_args()
    if options.fast:
        options.size, options.epochs, options.reference_epochs, options.hidden_size = 1000, 2, 1, 16
    torch.set_num_threads(1)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for text in ("The '\\w+_dataloader' does not have many workers", ".*LeafSpec", "You defined a `validation_step`"):
        warnings.filterwarnings("ignore", message=text)

    with tempfile.TemporaryDirectory() as folder:
        path = options.mail or Path(folder, "all.mbox")
        if options.mail is None:
            make_mailbox(path, options.size, random.Random(options.seed))
        mail = read_mail(path)
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in sorted(mail.left_out.items()))
    print(f"{len(mail.corpora):,} senders; messages left out: {left_out or 'none'}")
    corpora = [corpus for corpus in mail.corpora.values() if len(corpus.text) > 10 * WINDOW][: options.senders]
    tokenizer = CharTokenizer.from_text(*(corpus.text for corpus in corpora), "0123456789")
    found = [Scanner(kinds=KINDS).find(corpus.text) for corpus in corpora]
    began = time.perf_counter()
    models, references = [], []
    for letter, corpus in zip(LETTERS, corpora, strict=False):
        models.append(train(corpus.text, tokenizer, options.epochs, options, letter))
        # The reference knows how people write, and what such numbers look like, but not these.
        others = "\n".join(other.text for other in corpora if other is not corpus)
        references.append(train(others, tokenizer, options.reference_epochs, options, f"others-than-{letter}"))
    print(f"{len(models)} models and as many references trained in {time.perf_counter() - began:.0f} s")
    began = time.perf_counter()
    scans = [
        scan_model(findings, model, tokenizer, reference, ScanSettings(seed=options.seed))
        for findings, model, reference in zip(found, models, references, strict=True)
    ]
    print(f"{sum(len(scan.rows) for scan in scans)} secrets measured in {time.perf_counter() - began:.0f} s\n")
    print_table(corpora, scans)


if __name__ == "__main__":
    main()
