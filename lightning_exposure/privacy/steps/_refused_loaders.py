"""Which loaders cannot be made into one with batches by Poisson sampling, each with the reason and the remedy."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from lightning_exposure.errors import DataError


def check_loader(loader: Any) -> None:
    """Refuse a loader that Poisson sampling would turn into something else.

    Raises:
        DataError: Says what it is, and what to use in its place.
    """
    if not isinstance(loader, DataLoader):
        raise DataError(
            f"train_dataloader is a {type(loader).__name__}; expected one torch DataLoader, because every record must "
            "be in a batch with the same probability. Join several datasets with torch.utils.data.ConcatDataset."
        )
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise DataError(
            f"train_dataloader has the dataset {type(dataset).__name__}, which has no length or no index; expected a "
            "map-style dataset with __len__ and __getitem__, because records are drawn by their number. Read the "
            "stream into a list, or into files with an index."
        )
    batches: Any = loader.batch_sampler
    if type(batches) is not BatchSampler:
        raise DataError(
            f"train_dataloader has the batch_sampler {type(batches).__name__}; expected none of your own, because "
            "Poisson sampling puts batches together itself. Use DataLoader(dataset, batch_size=...)."
        )
    if not hasattr(loader, "resampled") and type(loader).__iter__ is not DataLoader.__iter__:
        raise DataError(
            f"train_dataloader is a {type(loader).__name__} with an __iter__ of its own, which could change what is in "
            "a batch; expected a torch.utils.data.DataLoader."
        )
    _check_sampler(batches.sampler, dataset)


def _check_sampler(sampler: Any, dataset: Any) -> None:
    while hasattr(sampler, "sampler"):
        sampler = sampler.sampler
    whole = isinstance(sampler, SequentialSampler | DistributedSampler)
    if isinstance(sampler, RandomSampler):
        whole = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    if not whole:
        raise DataError(
            f"train_dataloader has the sampler {type(sampler).__name__}, which does not take every record once; "
            "expected shuffle=True or shuffle=False, because Poisson sampling draws every record with the same "
            "probability. Choose records with torch.utils.data.Subset, and weigh them in the loss."
        )
