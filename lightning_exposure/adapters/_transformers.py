"""All that we use of the private or undocumented parts of transformers, in one place.

Nobody else in this package touches them. tests/adapters/test_transformers_private.py looks at each by name, so that a
new release that changes one of them fails there first, and says which.

transformers is an optional package: it is imported when something here is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor

_IMPLEMENTATION = "_attn_implementation_internal"
"""The attribute of a config that says which attention function a model uses; the public one refuses ours."""


# --- caches ---------------------------------------------------------------------------------------------------


class PlainCache:
    """What transformers asks any cache: how much was read before. The layers are not sliding: all is kept.

    Models ask a cache for more than the documented methods: `layers` and `offloading`, the sizes of masks in two
    spellings, and a length.

    Args:
        past: How many tokens were read before.
    """

    def __init__(self, past: int) -> None:
        self.past = past
        self.layers: list[Any] = []
        self.offloading = False

    def __len__(self) -> int:
        """As of a cache with something in it."""
        return 1

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """How many tokens were read before."""
        return self.past

    def get_mask_sizes(self, query_length: Any, *_: Any, **__: Any) -> tuple[int, int]:
        """How many tokens a mask covers, and at which it begins; older releases hand over positions."""
        return self.past + (query_length if isinstance(query_length, int) else len(query_length)), 0

    def get_max_length(self, *_: Any, **__: Any) -> int:
        """There is no limit."""
        return -1


def new_cache(kind: type[Any], *arguments: Any, **options: Any) -> Any:
    """A `PlainCache` of some kind as a cache of transformers, which models insist on."""
    if kind not in _KINDS:
        _KINDS[kind] = type(kind.__name__, (kind, _caches().Cache), {})
    return _KINDS[kind](*arguments, **options)


_KINDS: dict[type[Any], type[Any]] = {}


def encoder_decoder_cache(own: Any, source: Sequence[tuple[Tensor, Tensor]], rows: int) -> Any:
    """A cache for decoders: one for the target's own tokens, and what is looked up in the source.

    Args:
        own: A cache of transformers.
        source: Keys and values of each layer for one source `(1, heads, tokens, size)`, which all rows see through
            views; without any, they are computed and kept.
        rows: How many rows there are.
    """
    looked_up = _caches().DynamicCache()
    looked_up.layers.extend(_looked_up()(layer, rows) for layer in source)
    return _caches().EncoderDecoderCache(own, looked_up)


def looked_up_in(cache: Any) -> tuple[tuple[Tensor, Tensor], ...]:
    """What the layers of a decoder looked up in the source."""
    return tuple((layer.keys, layer.values) for layer in cache.cross_attention_cache.layers)


@cache
def _looked_up() -> type[Any]:
    base: Any = _caches().DynamicLayer

    class LookedUp(base):  # type: ignore[misc]
        """What is looked up in the source: the same for all rows."""

        def __init__(self, layer: tuple[Tensor, Tensor], rows: int) -> None:
            super().__init__()
            self.lazy_initialization(*layer)
            self.keys, self.values = (tensor.expand(rows, -1, -1, -1) for tensor in layer)

    return LookedUp


def tensors_in_cache(cache: Any) -> Iterator[Tensor]:
    """Every tensor in a cache, in a fixed order: containers, and the attributes of objects that transformers makes."""
    if isinstance(cache, Tensor):
        yield cache
    elif isinstance(cache, (list, tuple)):
        for item in cache:
            yield from tensors_in_cache(item)
    elif isinstance(cache, dict):
        for item in cache.values():
            yield from tensors_in_cache(item)
    elif type(cache).__module__.split(".")[0] == "transformers":
        yield from tensors_in_cache(vars(cache))


def _caches() -> Any:
    return import_module("transformers.cache_utils")


# --- attention ------------------------------------------------------------------------------------------------


def chooses_attention(config: object) -> bool:
    """Whether a config says which attention function is used."""
    return hasattr(config, _IMPLEMENTATION)


@contextmanager
def attention_replaced(configs: Sequence[Any], name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Let the models with these configs use an attention function; afterwards the configs are what they were."""
    _register_attention(name, function)
    before = [getattr(config, _IMPLEMENTATION) for config in configs]
    try:
        for config in configs:
            setattr(config, _IMPLEMENTATION, name)
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            setattr(config, _IMPLEMENTATION, implementation)


@cache
def _register_attention(name: str, function: Callable[..., Any]) -> None:
    modeling: Any = import_module("transformers.modeling_utils")
    modeling.AttentionInterface.register(name, function)
