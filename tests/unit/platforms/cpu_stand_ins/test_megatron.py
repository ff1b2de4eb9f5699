"""The stand-in for CUDA: which places in megatron-core it must cover, and that it leaves torch and CUDA machines
alone."""

import ast
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from roll.platforms.cpu_stand_ins import megatron as megatron_cpu

CALL_SITES = Path(__file__).with_name("megatron_call_sites.txt")


def speaks_of_cuda(tree: ast.AST) -> Iterator[str]:
    """Every expression that names CUDA: `torch.cuda.x`, `t.cuda()`, "cuda" and "torch.cuda.FloatTensor"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch.cuda."):
            yield ".".join(ast.unparse(node).split(".")[:3])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            yield ".cuda()"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_a_name_of_cuda(node.value):
            yield repr(node.value)


def _is_a_name_of_cuda(text: str) -> bool:
    return len(text) < 40 and text.startswith(("cuda", "torch.cuda"))


def found_call_sites() -> list[str]:
    spec = find_spec("megatron.core")
    assert spec is not None and spec.submodule_search_locations
    root = Path(next(iter(spec.submodule_search_locations)))
    lines = []
    for name in megatron_cpu.MODULES:
        path = root / (name.replace(".", "/") + ".py")
        path = path if path.exists() else root / name.replace(".", "/") / "__init__.py"
        counts = Counter(speaks_of_cuda(ast.parse(path.read_text(encoding="utf-8"))))
        lines += [f"{name}: {expression} x{count}" for expression, count in sorted(counts.items())]
    return lines


@pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed")
def test_megatron_speaks_of_cuda_where_it_did_when_the_stand_in_was_written() -> None:
    """If this fails after an upgrade of megatron-core: read what is new, cover it in
    roll/platforms/cpu_stand_ins/megatron.py if a CPU gets there, run tests/parity/megatron, and write the list anew
    (run this file as a script)."""
    assert found_call_sites() == CALL_SITES.read_text(encoding="utf-8").splitlines()


def test_nothing_happens_where_there_is_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(megatron_cpu.importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
    assert megatron_cpu.install() is False
    parameter = torch.nn.Parameter(torch.zeros(1))
    with megatron_cpu.cuda_type_names([parameter]), megatron_cpu.cuda_method_stays():
        assert parameter.type() == "torch.FloatTensor"
        assert torch.Tensor.cuda.__qualname__.startswith("TensorBase.cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: nothing stands in")
def test_parameters_have_cuda_type_names_inside_only() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    with megatron_cpu.cuda_type_names([parameter]):
        assert parameter.type() == "torch.cuda.FloatTensor"
        assert parameter.type(torch.float64).dtype is torch.float64
    assert parameter.type() == "torch.FloatTensor"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: nothing stands in")
def test_the_stand_in_answers_cpu_and_torch_stays_itself() -> None:
    stand_in = megatron_cpu._STAND_IN
    assert stand_in.cuda.current_device() == torch.device("cpu")
    assert stand_in.zeros(2, device="cuda").device.type == "cpu"
    assert stand_in.device("cuda:1") == torch.device("cpu")
    assert stand_in.tensor([1], pin_memory=True).cuda(non_blocking=True).tolist() == [1]
    assert stand_in.float32 is torch.float32
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")


if __name__ == "__main__":
    CALL_SITES.write_text("\n".join(found_call_sites()) + "\n", encoding="utf-8")
