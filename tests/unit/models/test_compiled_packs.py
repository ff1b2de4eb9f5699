"""Packs in a compiled model whose attention is one call of a kernel, with an operation in place of the GPU's."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.functional import scaled_dot_product_attention

from roll.configs.sections.model import ModelArgs
from roll.models import execution
from roll.models.loading import LoadedModel, load_policy
from roll.models.sequences import packed_attention
from roll.models.sequences.pack import Pack
from roll.platforms.table import CUDA

GROUPS = 2


@torch.library.custom_op("roll_tests::rows_of_any_length", mutates_args={})
def rows_of_any_length(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor, longest: int
) -> torch.Tensor:
    """All tokens as one row."""
    assert key.shape[1] == value.shape[1] == GROUPS < query.shape[1] and longest == int(starts.diff().max())
    q, k, v = (part.transpose(0, 1)[None] for part in (query, key, value))
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1).contiguous()


@rows_of_any_length.register_fake
def _(query: torch.Tensor, *others: Any) -> torch.Tensor:
    return query.new_empty(query.shape)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    return gradient, gradient[:, :GROUPS].clone(), gradient[:, :GROUPS].clone(), None, None


rows_of_any_length.register_autograd(_backward)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path) -> LoadedModel:
    """A model in bf16 on a device that has such a kernel."""

    def kernel(q: Any, k: Any, v: Any, starts: Any, _: Any, longest: int, *__: Any, **options: Any) -> torch.Tensor:
        assert options["enable_gqa"] and options["window_size"] == (-1, 0)
        return rows_of_any_length(q, k, v, starts, longest)

    monkeypatch.setattr(packed_attention, "varlen_attn", kernel)
    monkeypatch.setattr(packed_attention, "platform_of", lambda device: CUDA)
    loaded = load_policy(ModelArgs(model_name_or_path=str(tiny_model_dir), dtype="bf16"))
    packed_attention.use_packed_attention(loaded.pretrained)
    return loaded


def hidden(model: LoadedModel, length: int) -> torch.Tensor:
    ids = torch.randint(3, 290, (3, length), generator=torch.Generator().manual_seed(0))
    pack = Pack.scored(ids, torch.tensor([length, length - 2, length - 5]))
    return model.pretrained.base_model(**pack.arguments).last_hidden_state


def test_a_block_is_one_graph_for_all_lengths(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without generated code, which would take long."""
    plain: Any = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **given: plain(function, backend="aot_eager", **given))
    want = hidden(model, 40).detach()
    torch._dynamo.reset()
    counters.clear()
    execution.compile_model(model, follows_attention=True)
    for length in (40, 31, 36):
        got = hidden(model, length)
        got.float().sum().backward()
        if length == 40:
            assert float((got.detach() - want).abs().max()) < 0.1  # bf16; the numbers are up to 4
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()
