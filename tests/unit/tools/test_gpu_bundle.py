"""The folder for a machine without a network: what it carries, and what it leaves out."""

import ast
import os
import signal
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import gpu_bundle
from tools.gpu_bundle import CARRIED, LOCK, RUN, WITHOUT_WHEELS, _shorten, _versions, main

PYTHON = {"extra": "", "python_version": "3.12", "python_full_version": "3.12.3"}


def test_every_package_has_the_version_of_the_lock():
    assert set(CARRIED) <= _versions(LOCK.read_text()).keys()
    assert set(WITHOUT_WHEELS) <= set(CARRIED)


def requirements(names: Iterable[str]) -> set[str]:
    """What these packages ask for on Python 3.12, as far as they are installed here, without their extras."""
    needed: set[str] = set()
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found = [Requirement(text) for text in metadata.requires(name) or ()]
            needed |= {one.name for one in found if one.marker is None or one.marker.evaluate(PYTHON)}
    return {canonicalize_name(name) for name in needed}


def test_what_is_carried_has_all_that_it_asks_for():
    """The rest comes with what the machine has. Whole runs do without the last five: they read no parquet and no
    pictures, keep their figures as JSON, and run no tests of data sets."""
    there = {"torch", "transformers", "peft", "triton"}
    while more := requirements(there) - there:
        there |= more
    have = there | set(CARRIED)
    assert requirements(CARRIED) - have == set()
    asked = {canonicalize_name(Requirement(text).name) for text in roll_requires()}
    assert asked - have == {"argcomplete", "pyarrow", "pillow", "tensorboard", "pytest"}


def roll_requires() -> list[str]:
    (keyword,) = [
        keyword.value
        for call in ast.walk(ast.parse((gpu_bundle.REPOSITORY / "setup.py").read_text()))
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "install_requires"
    ]
    return ast.literal_eval(keyword)


def test_a_wheel_of_ray_loses_its_java_and_keeps_what_may_be_executed(tmp_path: Path):
    wheel = tmp_path / "ray-1-py3-none-any.whl"
    program = zipfile.ZipInfo("ray/core/raylet")
    program.external_attr = 0o755 << 16
    with zipfile.ZipFile(wheel, "w") as content:
        content.writestr(program, "binary")
        content.writestr("ray/jars/ray_dist.jar", "java")
        content.writestr("ray-1.dist-info/RECORD", "ray/core/raylet,,\nray/jars/ray_dist.jar,,\n")
    _shorten(wheel)
    with zipfile.ZipFile(wheel) as content:
        assert content.namelist() == ["ray/core/raylet", "ray-1.dist-info/RECORD"]
        assert content.read("ray-1.dist-info/RECORD") == b"ray/core/raylet,,\n"
        assert content.getinfo("ray/core/raylet").external_attr == 0o755 << 16
    assert list(tmp_path.iterdir()) == [wheel]


def test_a_folder_that_holds_anything_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "run.sh").touch()
    (tmp_path / "thesis.txt").touch()
    assert main(["--out", str(tmp_path)]) == 2
    assert "holds thesis.txt, which is not part of a bundle" in capsys.readouterr().err
    assert main(["--out", str(tmp_path / "thesis.txt")]) == 2
    assert "is no folder" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.sh", "thesis.txt"]


def test_a_bundle_that_cannot_be_made_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "run.sh").write_text("of before")
    monkeypatch.setattr(gpu_bundle, "_write", lambda out, python, pip_args: "no index")
    assert main(["--out", str(tmp_path / "made")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert (tmp_path / "made" / "run.sh").read_text() == "of before"


STAND_IN = """\
#!/usr/bin/env bash
# pip does nothing; the suite says its arguments, writes a report unless it is to list, and ends with 1.
case "$*" in
    *pip*) exit 0 ;;
    *--list*) exit 0 ;;
    *waits*)
        mkdir -p "$4"
        trap 'echo "{}" > "$4/report.json"; exit 130' INT
        touch "$WAITING"
        while :; do sleep 0.05; done ;;
    *) mkdir -p "$4"; echo "{}" > "$4/report.json"; echo "ran $*"; exit 1 ;;
esac
"""


def prepare(tmp_path: Path, **variables: str) -> tuple[list[str], dict[str, str]]:
    """The bundle's command with a stand-in for Python, to be called from another folder, and its environment."""
    bundle, programs = tmp_path / "bundle", tmp_path / "programs"
    for folder in (bundle / "wheels", programs, tmp_path / "elsewhere"):
        folder.mkdir(parents=True, exist_ok=True)
    (bundle / "run.sh").write_text(RUN)
    with tarfile.open(bundle / "roll.tar.gz", "w:gz") as archive:
        for name in ("reports/gpu/a.json", "reports/gpu.md"):
            archive.addfile(tarfile.TarInfo(name))
    (programs / "python3").write_text(STAND_IN)
    (programs / "python3").chmod(0o755)
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"} | variables
    return ["bash", str(bundle / "run.sh")], environment


def run(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command, environment = prepare(tmp_path, **variables)
    command += arguments
    return subprocess.run(
        command, cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_ctrl_c_ends_the_checks_and_what_they_found_is_packed(tmp_path: Path):
    command, environment = prepare(tmp_path)
    environment["WAITING"] = str(tmp_path / "waiting")
    process = subprocess.Popen(
        [*command, "waits"],
        env=environment,
        cwd=tmp_path,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "waiting").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them
        assert process.wait(30) == 130
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (tmp_path / "bundle" / "report-1.tar.gz").exists()


def test_each_run_of_the_bundle_packs_a_report_of_its_own_and_keeps_the_exit_code(tmp_path: Path):
    assert [run(tmp_path, "--minutes", "1", REPORT_DIR="kept").returncode for _ in range(2)] == [1, 1]
    kept = tmp_path / "elsewhere" / "kept"
    assert sorted(path.name for path in kept.iterdir()) == ["report-1.tar.gz", "report-2.tar.gz"]
    with tarfile.open(kept / "report-1.tar.gz") as archive:
        assert "gpu_report/report.json" in archive.getnames()


def test_the_bundle_packs_nothing_where_nothing_ran_and_says_what_it_cannot_take(tmp_path: Path):
    assert run(tmp_path, "--list").returncode == 0
    refused = run(tmp_path, "--out", "there")
    assert (refused.returncode, refused.stderr) == (2, "--out: the report goes to REPORT_DIR, or beside this file\n")
    assert run(tmp_path, REPORT_DIR="/proc/none").stderr == "REPORT_DIR: /proc/none cannot be written to\n"
    assert sorted(path.name for path in (tmp_path / "bundle").iterdir()) == ["roll.tar.gz", "run.sh", "wheels"]
