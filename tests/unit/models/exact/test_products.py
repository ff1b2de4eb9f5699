"""Products of exact passes where kernels compute them, as on GPUs: the kernel itself, interpreted, and models whose
products all go to a stand-in for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, Gemma3nTextConfig, GPT2Config, PretrainedConfig, PreTrainedModel

from roll.distributed.strategy.hf.exact_decoder import ExactDecoder
from roll.errors import StrategyError
from roll.models.exact import products
from roll.models.exact.check import check_exact, make_exact
from roll.models.exact.products import block_products, block_sums, exact_linear, exact_matmul
from roll.models.exact.rows import ExactRows
from roll.models.hf import LogProbHead, TokenLogProbModel
from roll.models.loading import LoadedModel
from roll.models.sequences.layout import Padded
from roll.models.sequences.pack import Pack
from tests.unit.models.exact.test_exact import FAMILIES

_VOCABULARY = 300
_MODELS: dict[str, PretrainedConfig] = {
    "qwen2": FAMILIES["qwen2"],
    "qwen3_moe": FAMILIES["qwen3_moe"],  # experts, and a router that is no linear layer
    "gpt2": GPT2Config(vocab_size=_VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=256),  # addmm
    "gemma3n": Gemma3nTextConfig(  # products of each token's own matrices
        vocab_size=_VOCABULARY,
        vocab_size_per_layer_input=_VOCABULARY,
        hidden_size=64,
        intermediate_size=[128, 128],
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        num_kv_shared_layers=0,
        activation_sparsity_pattern=[0.0, 0.0],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        hidden_size_per_layer_input=16,
        laurel_rank=8,
    ),
}
_aten: Any = torch.ops.aten
_PRODUCTS = {_aten.mm, _aten.bmm, _aten.addmm, _aten.baddbmm, _aten.mv, _aten.addmv, _aten.dot}


class _Kernel:
    """Stands in for the kernel: sums in fp64. Records what its callers leave to torch."""

    def __init__(self) -> None:
        self.calls = 0
        self.others: list[str] = []
        self._computes = False

    def __call__(self, left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        self.calls, self._computes = self.calls + 1, True
        times = right.shape[0] // left.shape[0]
        output = torch.matmul(left.double().repeat(times, 1, 1), right.double())
        self._computes = False
        return (output if bias is None else output + bias.double()).to(left.dtype)

    def watch(self) -> TorchDispatchMode:
        kernel = self

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if func.overloadpacket in _PRODUCTS and not kernel._computes:
                    kernel.others.append(f"{func} of {[tuple(part.shape) for part in args]}")
                return func(*args, **(kwargs or {}))

        return Watch()


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> _Kernel:
    stand_in = _Kernel()
    monkeypatch.setattr(products, "_kernel", lambda: stand_in)
    monkeypatch.setattr(products, "by_kernels", lambda device: True)
    return stand_in


def _model(kind: str) -> tuple[TokenLogProbModel, PreTrainedModel]:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(deepcopy(_MODELS[kind])).eval()
    head = LogProbHead(model.get_output_embeddings())  # type: ignore[arg-type]
    return TokenLogProbModel(model.base_model, head), model


def _rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([140, 9, 33])
    ids = torch.randint(3, 290, (3, 140), generator=torch.Generator().manual_seed(1))
    return ids, torch.arange(140) < lengths[:, None], lengths


_INTERPRETED = """
import torch
from roll.models.exact.kernels import batched_product
torch.manual_seed(0)
for fewer, batches, rows, inner, columns in ((1, 1, 70, 33, 130), (2, 6, 5, 40, 128), (1, 1, 1, 8, 4), (1, 1, 0, 8, 4)):
    left, bias = torch.randn(fewer, rows, inner), torch.randn(columns)
    right = torch.randn(batches, columns, inner).transpose(1, 2)
    wanted = torch.matmul(left.repeat(batches // fewer, 1, 1).double(), right.double())
    turned = left.transpose(1, 2).contiguous().transpose(1, 2)
    for found, want in (
        (batched_product(left, right, bias), wanted + bias.double()),
        (batched_product(turned, right.contiguous()), wanted),
    ):
        assert found.shape == want.shape and found.dtype == torch.float32
        torch.testing.assert_close(found.double(), want, rtol=0, atol=2e-5)
"""


def test_the_kernel_multiplies_matrices_of_any_shape() -> None:
    """In Triton's interpreter, in fp32 (it knows no bf16): tiles with remainders, batches in turns, other strides, no
    rows. Within the rounding of sums of 40 products. Not which order it adds in, which only a GPU shows."""
    pytest.importorskip("triton", reason="Triton is not installed")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _INTERPRETED], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", _MODELS)
def test_no_product_of_a_pass_is_left_to_torch(kind: str, kernel: _Kernel) -> None:
    """Whole rows, the head, and tokens beside cached ones; also rotary embeddings: where TF32 is on, they would be
    other numbers by other kernels."""
    module, model = _model(kind)
    ids, mask, lengths = _rows()
    decoder = ExactDecoder(LoadedModel(module, model, {}))
    with torch.no_grad(), kernel.watch():
        found = module(ids, mask, layout=ExactRows.of(Pack.scored(ids, lengths)))[0]
        check_exact(LoadedModel(module, model, {}), torch.device("cpu"))
        decoder.check()
    assert kernel.others == [] and kernel.calls > 50
    with torch.no_grad():
        wanted = _model(kind)[0](ids, mask, layout=Padded(ids, lengths))[0]
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("checkpoints", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("kind", _MODELS)
def test_gradients_are_those_of_the_plain_model(kind: str, checkpoints: bool, kernel: _Kernel) -> None:
    """fp32, within 1e-5 of a weight's largest gradient. Of Gemma-3n, no token is the padding token, whose gradient is
    no number."""
    ids, mask, lengths = _rows()
    sides = []
    for exact in (True, False):
        module, model = _model(kind)
        if exact:
            make_exact(LoadedModel(module, model, {}))
        if checkpoints:
            model.train().gradient_checkpointing_enable({"use_reentrant": False})
            for part in model.modules():
                if isinstance(part, torch.nn.Dropout):
                    part.p = 0.0
        layout = ExactRows.of(Pack.scored(ids, lengths)) if exact else Padded(ids, lengths)
        (module(ids, mask, layout=layout)[0] * mask).sum().backward()
        sides.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    ours, theirs = sides
    assert ours.keys() == theirs.keys() and kernel.calls > 20
    for name, gradient in theirs.items():
        assert (ours[name] - gradient).abs().max() <= 1e-5 * gradient.abs().max(), name


@pytest.mark.parametrize(
    ("found", "wanted", "shapes"),
    [
        (exact_linear, functional.linear, [(2, 3, 5), (4, 5), (4,)]),
        (exact_linear, functional.linear, [(5,), (4, 5)]),
        (exact_matmul, torch.matmul, [(2, 3, 5), (5, 4)]),
        (exact_matmul, torch.matmul, [(2, 1, 3, 5), (7, 5, 4)]),
        (exact_matmul, torch.matmul, [(3, 5), (2, 5, 4)]),
        (exact_matmul, torch.matmul, [(5,), (2, 5, 4)]),
        (exact_matmul, torch.matmul, [(2, 3, 5), (5,)]),
        (exact_matmul, torch.matmul, [(5,), (5,)]),
        (partial(products._exactly, torch.Tensor.__matmul__), torch.matmul, [(2, 3, 5), (5, 4)]),
    ],
    ids=[
        "with a bias",
        "a vector",
        "one matrix",
        "broadcast",
        "a matrix with many",
        "vector first",
        "vector last",
        "vectors",
        "x",
    ],
)
def test_products_and_their_gradients_are_torchs(
    found: Callable[..., torch.Tensor],
    wanted: Callable[..., torch.Tensor],
    shapes: list[tuple[int, ...]],
    kernel: _Kernel,
) -> None:
    torch.manual_seed(0)
    parts = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    torch.testing.assert_close(found(*parts), wanted(*parts))
    assert torch.autograd.gradcheck(found, parts) and kernel.calls > 0


def test_products_and_sums_of_blocks_are_those_of_torch(kernel: _Kernel) -> None:
    torch.manual_seed(0)
    query, weights, keys = torch.randn(2, 3, 4, 8), torch.randn(5, 2, 3, 4, 16), torch.randn(5, 2, 3, 16, 8)
    torch.testing.assert_close(block_products(query, keys.transpose(-1, -2)), query @ keys.transpose(-1, -2))
    torch.testing.assert_close(block_products(weights, keys), weights @ keys)
    torch.testing.assert_close(block_sums(weights), weights.sum(-1))


def test_a_gpu_without_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "by_kernels", lambda device: True)
    monkeypatch.setitem(sys.modules, "roll.models.exact.kernels", None)
    products._kernel.cache_clear()
    with pytest.raises(StrategyError, match="exact_log_probs computes by Triton on GPUs.*Install triton"):
        exact_linear(torch.zeros(1, 4), torch.zeros(4, 4))
