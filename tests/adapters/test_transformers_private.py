"""What we use of the private parts of transformers is still there: a new release that changes it fails here by name."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import cache_utils, modeling_utils

import lightning_exposure
from lightning_exposure.adapters import _transformers as ours
from tests.adapters.hf_models import CHARS, gpt2, mamba
from tests.translators import SOURCE, START, make_bart, make_t5

WHERE = f"transformers {transformers.__version__} changed"


@pytest.mark.parametrize("name", ["Cache", "DynamicCache", "DynamicLayer", "EncoderDecoderCache"])
def test_the_cache_classes_are_where_they_were(name: str) -> None:
    assert inspect.isclass(getattr(cache_utils, name, None)), f"{WHERE} transformers.cache_utils.{name}"


def test_the_attention_interface_takes_functions_by_name() -> None:
    interface = getattr(modeling_utils, "AttentionInterface", None)
    assert interface is not None, f"{WHERE} transformers.modeling_utils.AttentionInterface"
    assert callable(getattr(interface, "register", None)), f"{WHERE} AttentionInterface.register"


def test_configs_say_in_a_private_attribute_which_attention_function_is_used() -> None:
    config = gpt2().config
    assert hasattr(config, "_attn_implementation_internal"), f"{WHERE} config._attn_implementation_internal"
    assert ours.chooses_attention(config)
    assert not ours.chooses_attention(object())


def test_a_replaced_attention_function_is_called_and_put_back() -> None:
    model = gpt2()
    before, calls = model.config._attn_implementation, []

    def attention(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        calls.append(module)
        return value.transpose(1, 2), None

    with torch.no_grad(), ours.attention_replaced([model.config], "lightning_exposure_test", attention):
        model(torch.tensor([CHARS.encode("pin")]))
    assert len(calls) == model.config.num_hidden_layers, f"{WHERE} how models look their attention function up"
    assert model.config._attn_implementation == before, f"{WHERE} config._attn_implementation_internal"


class Noting(ours.PlainCache):
    """Notes who writes."""

    def __init__(self) -> None:
        super().__init__(past=0)
        self.layers_seen: list[int] = []

    def update(self, keys: Any, values: Any, layer_idx: int, *_: Any, **__: Any) -> Any:
        assert keys.shape == values.shape, f"{WHERE} Cache.update(keys, values, layer_idx)"
        self.layers_seen.append(layer_idx)
        return keys, values


def test_models_write_to_a_cache_of_ours_once_in_each_layer() -> None:
    model, cache = gpt2(), ours.new_cache(Noting)
    assert isinstance(cache, cache_utils.Cache), f"{WHERE} transformers.cache_utils.Cache"
    tokens = torch.tensor([CHARS.encode("pin 12")])
    with torch.no_grad():
        logits = model(tokens, past_key_values=cache, use_cache=True).logits
        expected = model(tokens, use_cache=False).logits
    torch.testing.assert_close(logits, expected, msg=f"{WHERE} what models ask a cache")
    assert cache.layers_seen == list(range(model.config.num_hidden_layers)), f"{WHERE} Cache.update"


@pytest.mark.parametrize("make", [make_t5, make_bart])
def test_decoders_take_what_was_looked_up_in_the_source_from_the_cache(make: Any) -> None:
    torch.manual_seed(0)
    model: Any = make().eval()
    source, target = torch.tensor([SOURCE]), torch.tensor([[START, 5, 6]])
    cache = ours.encoder_decoder_cache(cache_utils.DynamicCache(), (), rows=1)
    with torch.no_grad():
        expected = model(input_ids=source, decoder_input_ids=target, past_key_values=cache, use_cache=True).logits
        layers = ours.looked_up_in(cache)
        assert len(layers) == 2, f"{WHERE} EncoderDecoderCache.cross_attention_cache.layers"
        for keys, values in layers:
            assert keys.shape == values.shape, f"{WHERE} DynamicLayer.keys and DynamicLayer.values"
            assert (len(keys), keys.shape[2]) == (1, len(SOURCE)), f"{WHERE} the shape of DynamicLayer.keys"
        encoded = model.get_encoder()(input_ids=source, return_dict=True)
        calls: list[Any] = []
        crossing = next(
            part for name, part in model.named_modules() if re.search(r"(EncDecAttention|encoder_attn)\.k", name)
        )
        hook = crossing.register_forward_hook(lambda *_: calls.append(1))
        again = ours.encoder_decoder_cache(cache_utils.DynamicCache(), layers, rows=1)
        given = model(encoder_outputs=encoded, decoder_input_ids=target, past_key_values=again, use_cache=True).logits
        hook.remove()
    torch.testing.assert_close(given, expected, msg=f"{WHERE} DynamicLayer.lazy_initialization")
    assert not calls, f"{WHERE} EncoderDecoderCache.is_updated: keys of the source are computed again"


def test_the_state_of_mamba_is_made_of_tensors_in_attributes_of_its_cache() -> None:
    model = mamba()
    with torch.no_grad():
        cache = model(torch.tensor([CHARS.encode("pin")]), use_cache=True).cache_params
    assert list(ours.tensors_in_cache(cache)), f"{WHERE} the attributes of {type(cache).__name__}"


PRIVATE = (
    "_attn_implementation_internal",
    "cache_utils",
    "modeling_utils",
    "cross_attention_cache",
    "lazy_initialization",
)


@pytest.mark.parametrize("name", PRIVATE)
def test_nobody_else_touches_them(name: str) -> None:
    package = Path(lightning_exposure.__file__).parent
    users = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if name in path.read_text("utf-8")}
    assert users == {"adapters/_transformers.py"}
