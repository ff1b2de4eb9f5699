"""The CPU stand-ins do what sglang calls, fail loudly for the rest, and let torchvision be imported."""

import importlib.metadata
import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
import torch

TOOL = Path(__file__).resolve().parents[3] / "tools" / "cpu_stand_ins"

pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="torch has a CUDA build: nothing stands in")


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sgl_kernel() -> ModuleType:
    return load(TOOL / "site" / "sgl_kernel" / "__init__.py", "sgl_kernel_stand_in")


@pytest.fixture(scope="module")
def installer() -> ModuleType:
    return load(TOOL / "install.py", "cpu_stand_ins_install")


def test_kernels_of_the_stand_in_keep_order_or_say_their_name(sgl_kernel: ModuleType) -> None:
    table = torch.zeros(3, 4, dtype=torch.int32)
    sgl_kernel.assign_req_to_token_pool_cpu(
        torch.tensor([2, 0]), table, torch.tensor([1, 0]), torch.tensor([3, 1]), torch.tensor([7, 8, 9]), 4
    )
    assert table.tolist() == [[9, 0, 0, 0], [0, 0, 0, 0], [0, 7, 8, 0]]
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.awq_dequantize needs a GPU"):
        sgl_kernel.awq_dequantize(torch.zeros(1))
    with pytest.raises(AttributeError):
        _ = sgl_kernel.__no_such_name__


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
def test_torchvision_imports_with_the_stand_in_and_its_operator_still_fails(
    installer: ModuleType, tmp_path: Path
) -> None:
    installer.install(tmp_path)
    code = (
        f"import sys, site; sys.path.append({sysconfig.get_path('purelib')!r})\n"
        f"for again in range(2): site.addsitedir({str(tmp_path)!r})  # a virtual environment's .pth may run twice\n"
        "import torch, torchvision\n"
        "try: torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)\n"
        "except (NotImplementedError, RuntimeError) as error: print('refused', type(error).__name__)\n"
    )
    # -S: the installed packages are on the path, but no .pth file of theirs has run
    result = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    if "+cpu" not in importlib.metadata.version("torchvision"):
        assert result.stdout.startswith("refused")


def test_installing_over_a_real_kernel_package_leaves_it_alone(installer: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "sgl_kernel").mkdir()
    (tmp_path / "sgl_kernel" / "__init__.py").write_text("real = True\n")
    assert installer.install(tmp_path) == ["torchvision operators"]
    installer.remove(tmp_path)
    assert [path.name for path in tmp_path.rglob("*.*")] == ["__init__.py"]
    assert (tmp_path / "sgl_kernel" / "__init__.py").read_text() == "real = True\n"


def test_installing_twice_changes_nothing_and_removing_leaves_nothing(installer: ModuleType, tmp_path: Path) -> None:
    first = installer.install(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert installer.install(tmp_path) == first
    assert {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    installer.remove(tmp_path)
    assert list(tmp_path.iterdir()) == []
