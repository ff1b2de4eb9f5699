"""roll as a wheel, without a checkout: what a user has who installs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from roll.commands.table import SUBCOMMANDS
from tests.helpers.runs import REPOSITORY, START_LIMIT_S

FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
SOURCES = (*FILES, "roll", "examples/config", "examples/reproduce")
CALL_EACH = """
import contextlib, io, json, sys
from roll.commands.table import main

def call(words):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    return [code or 0, shown.getvalue()]

print(json.dumps([call(words) for words in json.loads(sys.argv[1])]))
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * START_LIMIT_S)]


@dataclass(frozen=True)
class Installed:
    """`bin` has the python and the roll of an environment that has the wheel and, of everything else, what the tests
    have; `folder` the examples, without the fragments that they refer to."""

    wheel: Path
    bin: Path
    folder: Path

    def ran(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        words = [str(self.bin / command[0]), *command[1:]]
        return subprocess.run(
            words, cwd=self.folder, env=variables | environment, capture_output=True, text=True, check=False
        )

    def calls(self, *words: list[str]) -> list[tuple[int, str]]:
        """Exit code and output of each, as behind the word `roll`; in one process, since starting takes seconds."""
        done = self.ran("python", "-c", CALL_EACH, json.dumps(words))
        assert done.returncode == 0, done.stderr
        return [(code, shown) for code, shown in json.loads(done.stdout.splitlines()[-1])]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    base = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        place, without = REPOSITORY / name, shutil.ignore_patterns("__pycache__")
        if place.is_dir():
            shutil.copytree(place, base / "source" / name, ignore=without)
        else:
            (base / "source").mkdir(exist_ok=True)
            shutil.copy(place, base / "source" / name)
    build = ["pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(base), str(base / "source")]
    subprocess.run([sys.executable, "-m", *build], cwd=base, check=True)
    (wheel,) = base.glob("*.whl")
    python = base / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(base / "venv")], check=True)
    install = ["pip", "-q", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", *install], check=True)
    see_packages_of_the_tests(python)
    shutil.copytree(
        REPOSITORY / "examples", base / "elsewhere", ignore=shutil.ignore_patterns("__pycache__", "config", "*.py")
    )
    return Installed(wheel, python.parent, base / "elsewhere")


def see_packages_of_the_tests(python: Path) -> None:
    """By a line of a .pth, which adds a folder and does not read the .pth files in it: so the checkout, which stands
    in one of those, stays unseen. The stand-ins for what a CPU lacks, another of them, are copied."""
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
    packages = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    Path(own, "packages_of_the_tests.pth").write_text("\n".join(packages) + "\n")
    for stand_ins in Path(sysconfig.get_path("purelib")).glob("roll_cpu_stand_ins.pth"):
        shutil.copy(stand_ins, own)


def test_the_wheel_holds_every_file_of_the_package_and_the_fragments(installed: Installed) -> None:
    package = (
        path for path in (REPOSITORY / "roll").rglob("*") if path.is_file() and path.parent.name != "__pycache__"
    )
    fragments = {
        f"roll/configs/fragments/config/{path.name}" for path in (REPOSITORY / "examples/config").glob("*.yaml")
    }
    examples = REPOSITORY / "examples/reproduce"
    recipes = {f"roll/reproduce/recipes/{path.relative_to(examples)}" for path in examples.rglob("*") if path.is_file()}
    wanted = {path.relative_to(REPOSITORY).as_posix() for path in package} | fragments | recipes
    held = {name for name in zipfile.ZipFile(installed.wheel).namelist() if name.startswith("roll/")}
    assert fragments and held == wanted


def test_what_is_imported_is_the_wheel_and_not_the_checkout(installed: Installed) -> None:
    done = installed.ran("python", "-c", "import roll.commands.table; print(roll.commands.table.__file__)")
    assert Path(done.stdout.strip()).is_relative_to(installed.bin.parent), done.stdout + done.stderr


def test_the_command_and_each_of_its_words_have_help(installed: Installed) -> None:
    done = installed.ran("roll", "--help")
    assert done.returncode == 0 and all(f"  {word} " in done.stdout for word in SUBCOMMANDS), done.stdout + done.stderr
    shown = installed.calls(*([word, "--help"] for word in SUBCOMMANDS))
    wrong = {
        word: text for word, (code, text) in zip(SUBCOMMANDS, shown, strict=True) if code or f"roll {word}" not in text
    }
    assert wrong == {}


def test_the_recipes_of_real_models_come_along(installed: Installed) -> None:
    ((code, shown),) = installed.calls(["reproduce"])
    assert code == 0 and shown.startswith("sums-135m "), shown


def test_every_example_has_a_plan_that_works_elsewhere(installed: Installed) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(installed.folder.glob("*/*.yaml"))}
    paths = [path for path, text in texts.items() if "\nexp_name: " in text]
    shown = installed.calls(*(["plan", str(path), "--elsewhere"] for path in paths))
    assert len(paths) >= 35
    wrong = {str(path): text for path, (code, text) in zip(paths, shown, strict=True) if code}
    assert wrong == {}


@pytest.fixture
def temporary() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as short:  # Ray's sockets go below
        yield short


@pytest.mark.parametrize(
    ("example", "variable", "fixture"),
    [
        ("tiny-sort/tiny_sort", "TINY_SORT_DIR", "sort_data"),
        ("tiny-frozen-lake/tiny_frozen_lake", "TINY_FROZEN_LAKE_DIR", "lake_data"),
    ],
)
def test_a_run_starts_and_ends_from_the_wheel(
    example: str,
    variable: str,
    fixture: str,
    installed: Installed,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    temporary: str,
) -> None:
    """Two steps: the second samples with the weights of the first."""
    data = str(request.getfixturevalue(fixture))
    overrides = ["max_steps=2", "eval_steps=-1", "save_steps=-1", f"output_dir={tmp_path / 'out'}"]
    done = installed.ran("roll", "run", f"{example}.yaml", *overrides, **{variable: data, "TMPDIR": temporary})
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in next(tmp_path.glob("out/**/metrics.jsonl")).read_text().splitlines()]
    assert [row["step"] for row in rows if "rollout/reward_mean" in row] == [1, 2]
