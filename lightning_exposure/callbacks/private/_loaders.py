"""Which loader a private training run reads: one with batches by Poisson sampling, in the place of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lightning_exposure.callbacks.private.watching.seams import put
from lightning_exposure.errors import DataError, FitError
from lightning_exposure.privacy.steps.parts import Rest
from lightning_exposure.privacy.steps.poisson import Draw, PoissonLoader
from lightning_exposure.privacy.steps.secure import AnyGenerator


def replace_loader(
    source: Any,
    generator: Callable[[], AnyGenerator],
    protect: Callable[[PoissonLoader], None],
    failed: Callable[[DataError], None],
) -> Callable[[], None]:
    """Let a data module or module give a Poisson loader in the place of its own.

    Args:
        source: The data module or module.
        generator: Makes the generator of every pass over the data.
        protect: Lets a loader draw records, or users.
        failed: Told why there cannot be one. If it were raised when Lightning asks, torch's classes would stay patched.

    Returns:
        What undoes it.
    """
    original = source.train_dataloader

    def train_dataloader() -> Any:
        loader = original()
        try:
            made = loader if isinstance(loader, PoissonLoader) else PoissonLoader(loader)
            protect(made)
        except DataError as problem:
            failed(problem)
            return loader
        made.bind(generator)
        return made

    return put(source, "train_dataloader", train_dataloader)


def poisson_loader(loader: object) -> PoissonLoader:
    """A loader, if it is one with batches by Poisson sampling.

    Raises:
        FitError: It was given to `Trainer.fit`, and has to be wrapped.
        DataError: It is something else.
    """
    if isinstance(loader, PoissonLoader):
        return loader
    if isinstance(loader, torch.utils.data.DataLoader):
        raise FitError(
            f"Trainer.fit was given the training loader itself ({type(loader).__name__}), which no callback can "
            "replace; private training needs batches by Poisson sampling. Wrap it: trainer.fit(model, "
            "PoissonLoader(loader)), with `from lightning_exposure.privacy import PoissonLoader`; or put it into a "
            "data module."
        )
    raise DataError(
        f"train_dataloader is a {type(loader).__name__}; expected one PoissonLoader, because every record must be in a "
        "batch with the same probability. Join several datasets with torch.utils.data.ConcatDataset."
    )


def refuse_change(before: PoissonLoader | None, loader: PoissonLoader) -> None:
    """Refuse a loader that is not of the same data as the one before.

    Raises:
        FitError: It has other records, other users, or other steps.
    """
    if before is not None and (loader.steps, loader.records, loader.users) != (
        before.steps,
        before.records,
        before.users,
    ):
        raise FitError(
            f"The training loader changed while it trained, from {before!r} to {loader!r}; the epsilon would not "
            "hold. Leave reload_dataloaders_every_n_epochs out, or return data of the same size, and of the same users."
        )


def next_draw(loader: PoissonLoader) -> tuple[int, Draw, Rest]:
    """How many examples the coming batch has, which records they are, and the parts of it that are still to be read.

    Raises:
        FitError: Nothing was drawn for it.
    """
    if not loader.sizes:
        raise FitError(
            "A batch did not come out of the PoissonLoader, or was not yet fetched when the step began. Leave the "
            "fetching to the Trainer: use training_step(self, batch, batch_idx)."
        )
    return loader.sizes.popleft(), loader.draws.popleft(), loader.rests.popleft()
