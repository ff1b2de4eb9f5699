"""What a trained model keeps between its two passes, against what a plan says of it."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from roll.configs.memory.layer_shape import ModelShape
from roll.configs.memory.model_shape import model_shape
from roll.configs.memory.passes import layer_bytes, saved_bytes
from roll.configs.sections.model import ModelArgs
from roll.models.exact import products
from roll.models.exact.attention import EXACT_ATTENTION
from roll.models.exact.check import make_exact
from roll.models.exact.rows import ExactRows
from roll.models.loading import LoadedModel, load_policy
from roll.models.recomputation import _contexts, is_dear
from roll.models.sequences.pack import Pack
from roll.models.sequences.packed_attention import use_packed_attention
from roll.utils.files import read_object

ROWS, LENGTH = 4, 201
TOKENS = ROWS * (LENGTH - 1)


@pytest.fixture(scope="module")
def wide_dir(make_tiny_model_dir: Callable[..., Path]) -> Path:
    """Products of at least 128 terms, so that none is too cheap to be kept."""
    return make_tiny_model_dir(hidden_size=128, num_heads=4, num_kv_heads=2)


def loaded(model_dir: Path, **of_args: Any) -> LoadedModel:
    model = load_policy(ModelArgs(model_name_or_path=str(model_dir), dtype="fp32", **of_args))
    use_packed_attention(model.pretrained)
    return model


def loaded_exact(model_dir: Path, **of_args: Any) -> LoadedModel:
    model = load_policy(ModelArgs(model_name_or_path=str(model_dir), dtype="fp32", **of_args))
    make_exact(model)
    return model


def forward(model: LoadedModel, ids: torch.Tensor | None = None) -> torch.Tensor:
    if ids is None:
        ids = torch.randint(3, 290, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    pack = Pack.scored(ids, torch.full((len(ids),), ids.shape[1]))
    is_exact = model.pretrained.config._attn_implementation == EXACT_ATTENTION
    layout = ExactRows.of(pack) if is_exact else pack
    return model.pretrained.base_model(**layout.arguments).last_hidden_state


def kept_bytes(model: LoadedModel, ids: torch.Tensor | None = None) -> int:
    """Bytes that were allocated in a forward pass, and not freed by its end."""
    forward(model, ids).sum().backward()  # what is allocated once, and the compiler
    gc.collect()  # what other tests left would be freed meanwhile
    gc.disable()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            hidden = forward(model, ids)
    finally:
        gc.enable()
    assert hidden.requires_grad
    events: Any = profiled.profiler.kineto_results.events()  # type: ignore[union-attr]
    return sum(event.nbytes() for event in events if event.name() == "[memory]")


def shape_of(model_dir: Path) -> ModelShape:
    shape, why_not = model_shape(read_object(model_dir / "config.json"))
    assert shape is not None, why_not
    return shape


def measured(model: LoadedModel, full: int, shape: ModelShape) -> float:
    """Bytes per token and layer beyond those of a model that is recomputed in full."""
    return (kept_bytes(model) - full) / TOKENS / shape.num_layers


def test_what_selective_recomputation_keeps_is_what_the_plan_says(wide_dir: Path) -> None:
    """To the byte, but for a number per head and token that attention keeps. All that layers keep is twice as much."""
    shape, full = shape_of(wide_dir), kept_bytes(loaded(wide_dir))
    layer = shape.layers[0]
    planned = saved_bytes(shape, layer, 4, "selective") - saved_bytes(shape, layer, 4, "full")
    of_heads = 4 * 4
    selective = measured(loaded(wide_dir, recompute_granularity="selective"), full, shape)
    assert selective == pytest.approx(planned + of_heads)
    everything = measured(loaded(wide_dir, disable_gradient_checkpointing=True), full, shape)
    assert 1.6 < everything / selective < 2.2
    repeated = 4 * 2 * 2 * 32  # on a CPU keys and values of a head are repeated for the second one that has them
    planned = layer_bytes(layer, 4) - saved_bytes(shape, layer, 4, "full")
    assert everything == pytest.approx(planned + repeated, rel=0.001)


@pytest.mark.parametrize("by_kernels", [False, True], ids=["products of torch", "products of a kernel"])
def test_exact_passes_keep_what_the_plan_says(
    by_kernels: bool, wide_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their products on GPUs are no operations of torch's own, and neither is their attention: the same bytes, and
    gradients to the bit."""
    if by_kernels:
        monkeypatch.setattr(products, "by_kernels", lambda device: True)
        monkeypatch.setattr(products, "_kernel", lambda: product)
    shape, full = shape_of(wide_dir), kept_bytes(loaded_exact(wide_dir))
    selective = loaded_exact(wide_dir, recompute_granularity="selective")
    layer = shape.layers[0]
    planned = saved_bytes(shape, layer, 4, "selective") - saved_bytes(shape, layer, 4, "full")
    assert measured(selective, full, shape) == pytest.approx(planned + 4 * 4)
    everything = loaded_exact(wide_dir, disable_gradient_checkpointing=True)
    for model in (selective, everything):
        model.module.zero_grad()
        forward(model).square().sum().backward()
    for (name, ours), theirs in zip(selective.module.named_parameters(), everything.module.parameters(), strict=True):
        pair = [each.grad for each in (ours, theirs) if each.grad is not None]
        assert not pair or torch.equal(*pair), name


def product(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Stands in for the kernel."""
    output = torch.matmul(left.repeat(len(right) // len(left), 1, 1), right)
    return output if bias is None else output + bias


def test_products_and_attention_are_dear_and_nothing_that_writes_to_others_memory() -> None:
    aten: Any = torch.ops.aten
    wide, narrow = torch.zeros(1, 128), torch.zeros(1, 8)
    assert is_dear(aten.mm.default, (wide, wide.T)) and is_dear(aten.addmm.default, (narrow, wide, wide.T))
    assert not is_dear(aten.mm.default, (narrow, narrow.T))
    assert is_dear(aten._scaled_dot_product_flash_attention.default, ())
    assert is_dear(torch.ops.torch_attn._varlen_attn.default, ())
    assert is_dear(aten._flash_attention_forward.default, ()) and is_dear(aten._efficient_attention_forward.default, ())
    assert not any(is_dear(op, (wide, wide)) for op in (aten.mm.out, aten.bmm.default, aten.silu.default))
    exact: Any = torch.ops.roll.exact_product.default
    assert is_dear(exact, (wide[None], wide[None])) and is_dear(torch.ops.roll.exact_attention.default, ())
    assert not is_dear(exact, (wide.expand(2, 1, 128), wide)) and not is_dear(exact, (narrow[None], narrow))


@pytest.mark.parametrize("changes", ["the product", "a view of it", "out="])
def test_a_product_that_is_changed_in_place_is_kept_as_it_was(changes: str) -> None:
    """torch's own selective checkpointing adds twice to the output of a layer that sees three dimensions."""
    layer = torch.nn.Linear(128, 128, bias=False)

    def block(inputs: torch.Tensor) -> torch.Tensor:
        product = layer(inputs)
        if changes == "the product":
            product += 1
        elif changes == "a view of it":
            product[..., 3:].mul_(2)
        else:
            with torch.no_grad():
                torch.mul(torch.ones(6, 128), 2, out=product.view(-1, 128))
        return (product**2).sum()

    inputs = torch.randn(2, 3, 128, generator=torch.Generator().manual_seed(0)).requires_grad_()
    want = torch.autograd.grad(block(inputs), [inputs, layer.weight])
    got = torch.autograd.grad(
        checkpoint(block, inputs, use_reentrant=False, context_fn=_contexts), [inputs, layer.weight]
    )
    for ours, theirs in zip(got, want, strict=True):
        assert torch.equal(ours, theirs)
