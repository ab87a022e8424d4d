"""The page about layers in private training says what the code says, and the code does what it says."""

from __future__ import annotations

import inspect
import re

import pytest
from torch import nn

from lightning_exposure.errors import ModelError
from lightning_exposure.privacy import Clipping
from tests.docs.private_layers import PAGE, SAMPLES, Sample, made_of, on_page, row, table
from tests.privacy.huggingface_models import FAMILIES
from tests.privacy.per_example import assert_clips_like_a_loop

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")


def test_the_page_has_the_table_that_the_code_gives() -> None:
    assert on_page() == table(), "python -m tests.docs.private_layers"


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample[0] for sample in SAMPLES])
def test_what_it_says_is_so(sample: Sample) -> None:
    _, supported, why = row(sample)
    assert supported == ("no" if sample[2] is None else "yes")
    if sample[2] is None:
        with pytest.raises(ModelError, match=re.escape(why)):
            Clipping(made_of(sample), max_grad_norm=1.0)
    else:
        # The norms of some models compute in single precision.
        assert_clips_like_a_loop(made_of(sample).double(), sample[2], tolerance=1e-5)


def has_parameters(kind: type[nn.Module]) -> bool:
    ours = [base for base in kind.__mro__ if base not in (nn.Module, object) and base.__module__.startswith("torch")]
    return any("Parameter(" in inspect.getsource(base) for base in ours)


def test_every_layer_of_pytorch_with_parameters_is_in_it() -> None:
    kinds = {name for name, kind in vars(nn).items() if inspect.isclass(kind) and issubclass(kind, nn.Module)}
    with_parameters = {name for name in kinds if has_parameters(getattr(nn, name))}
    abstract = {"RNNBase", "RNNCellBase"}
    lazy = {name for name in kinds if name.startswith("Lazy")}
    listed = {re.match(r"nn\.(\w+)", sample[0]) for sample in SAMPLES}
    assert with_parameters - abstract - lazy <= {found[1] for found in listed if found}


def test_the_page_names_every_model_that_is_tested() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in FAMILIES if name.partition(",")[0] not in page] == []
