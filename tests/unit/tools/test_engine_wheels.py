"""The engines as they are published for GPUs, read and not imported: does everything that we import from them exist?"""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.layout.source import modules
from tools.make_locks import FOLDER, pins

PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 28, 31, 34, 35)]
IMPORT_OF = {"vllm": "vllm", "sglang": "sglang", "megatron-core": "megatron", "deepspeed": "deepspeed"}
LOCK_OF = {"vllm": "cuda-vllm", "sglang": "cuda-sglang", "megatron-core": "cuda-megatron", "deepspeed": "cuda-vllm"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("distribution", IMPORT_OF)
def test_everything_that_is_imported_from_an_engine_is_in_its_release_for_gpus(
    distribution: str, tmp_path: Path
) -> None:
    """Modules and names, by the syntax of both sides. It does not see what is set or called on objects."""
    files = texts(release(distribution, tmp_path))
    wanted = sorted(set(imported(IMPORT_OF[distribution])))
    assert len(wanted) >= 8
    assert [f"{module}: {name}" for module, name in wanted if not has(files, module, name)] == []


def test_a_name_is_found_where_it_is_bound_and_nowhere_else() -> None:
    text = "try:\n    from b import c\nexcept ImportError:\n    c = None\ndef f(): g = 1\nclass K: h = 1\nx, y = 1, 2\n"
    files = {"a/__init__.py": text, "a/b.py": "from a.d import *", "a/d.py": "z: int = 3"}
    assert all(has(files, "a", name) for name in ("c", "f", "K", "x", "y", "b", ""))
    assert has(files, "a.b", "z")
    assert not any(has(files, module, name) for module, name in (("a", "g"), ("a", "h"), ("a.e", ""), ("a.b", "c")))


def test_modules_that_take_all_names_of_each_other_have_those_that_either_binds() -> None:
    files = {"a.py": "from b import *\nx = 1", "b.py": "from a import *\ny = 2"}
    assert all(has(files, module, name) for module in ("a", "b") for name in ("x", "y"))
    assert not has(files, "a", "z")


def imported(package: str) -> Iterator[tuple[str, str]]:
    """(module, name) of what roll takes from a package; the name is empty where a module itself is imported."""
    for module in modules("roll"):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                yield from ((each.name, "") for each in node.names if each.name.split(".")[0] == package)
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package:
                yield from ((node.module, each.name) for each in node.names)


def has(files: dict[str, str], module: str, name: str, asked: frozenset[str] = frozenset()) -> bool:
    """Whether `from module import name` finds something: a name bound at its top, or a module below. `asked` are
    modules on the way here, which take each other's names in a circle."""
    if module in asked:
        return False
    if name and has(files, f"{module}.{name}", ""):
        return True
    path = module.replace(".", "/")
    text = files.get(f"{path}.py", files.get(f"{path}/__init__.py"))
    if text is None:
        return not name and any(file.startswith(f"{path}/") for file in files)
    return not name or any(
        bound == name or (bound.startswith("*") and has(files, bound[1:], name, asked | {module}))
        for bound in bound_names(ast.parse(text).body, module, f"{path}/__init__.py" in files)
    )


def bound_names(body: Sequence[ast.AST], module: str, is_package: bool) -> Iterator[str]:
    """What running a module binds at its top, under if, try and with as well; `*x.y` for all names of a module."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import):
            yield from (each.asname or each.name.split(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"*{source}" if each.name == "*" else each.asname or each.name for each in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
        else:
            yield from bound_names([*ast.iter_child_nodes(node)], module, is_package)


def release(distribution: str, folder: Path) -> Path:
    """The file of the version in the lock for GPUs: a wheel, or the sources where there is no other."""
    wanted = f"{distribution}=={pins(FOLDER / f'{LOCK_OF[distribution]}.txt')[distribution]}"
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), wanted]
    if distribution == "deepspeed":
        command += ["--no-build-isolation", "--no-binary=:all:"]
    else:
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        command += ["--only-binary=:all:", "--python-version", "3.11", *platforms]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{wanted} cannot be downloaded here: {done.stderr[-300:]}")
    (file,) = folder.iterdir()
    return file


def texts(file: Path) -> dict[str, str]:
    """Its Python files by their paths from the folder that is imported from."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".py")]
            return {name: wheel.read(name).decode("utf-8", "replace") for name in names}
    with tarfile.open(file) as sources:
        found = {}
        for member in sources.getmembers():
            if member.name.endswith(".py") and (stream := sources.extractfile(member)) is not None:
                found[member.name.partition("/")[2]] = stream.read().decode("utf-8", "replace")
        return found
