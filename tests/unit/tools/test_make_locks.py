"""The locks in requirements/: what their script keeps of an answer of the resolver, and what they hold."""

import os
import shutil
import subprocess
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.layout.test_build import requirements
from tools.make_locks import FOLDER, LOCKS, MACHINES, PYTHONS, kept, machines, main, pins, resolve, text_of

CUDA = [name for name in LOCKS if name.startswith("cuda")]


def test_a_marker_stays_only_where_some_of_our_machines_differ() -> None:
    lines = [
        "a==1",
        "b==1 ; sys_platform == 'linux'",
        "c==1 ; sys_platform == 'win32'",
        "d==1 ; platform_machine == 'x86_64'",
        "e==1 ; python_full_version >= '3.14'",
    ]
    assert list(kept(lines)) == ["a==1", "b==1", "d==1 ; platform_machine == 'x86_64'"]


def test_without_the_resolver_nothing_is_written_and_it_is_said_how_to_get_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["cpu-demo", "--uv", "/nonexistent/uv"])
    assert "pip install uv" in capsys.readouterr().err


@pytest.mark.parametrize("name", LOCKS)
def test_each_lock_has_one_version_of_a_package_for_each_machine_and_says_where_it_comes_from(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert text == text_of(name, lines)
    for machine in machines():
        there = [Requirement(line) for line in lines]
        names = [each.name for each in there if each.marker is None or each.marker.evaluate(machine)]
        assert len(names) == len(set(names)) == len(pins(FOLDER / f"{name}.txt", machine))


@pytest.mark.parametrize("name", CUDA)
def test_a_lock_for_gpus_holds_versions_that_setup_allows(name: str) -> None:
    asked = {requirement.name.lower(): requirement.specifier for requirement in requirements()}
    for machine in machines():
        versions = pins(FOLDER / f"{name}.txt", machine)
        shared = asked.keys() & versions.keys()
        assert {"torch", "ray", "transformers", "megatron-core" if "megatron" in name else "deepspeed"} < shared
        assert {package: versions[package] for package in shared if versions[package] not in asked[package]} == {}


def test_the_engine_of_a_lock_is_the_one_in_its_name() -> None:
    engines = {name: {"vllm", "sglang"} & pins(FOLDER / f"{name}.txt").keys() for name in CUDA}
    assert engines == {"cuda-vllm": {"vllm"}, "cuda-sglang": {"sglang"}, "cuda-megatron": set()}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LOCKS)
def test_the_resolver_gives_what_the_lock_has_and_finds_each_package_for_each_machine(
    name: str, tmp_path: Path
) -> None:
    uv = resolver(tmp_path)
    lock = FOLDER / f"{name}.txt"
    assert text_of(name, resolve(uv, name, lock)) == lock.read_text(encoding="utf-8")
    for python in PYTHONS:
        for machine in MACHINES:
            platform = f"{machine}-manylinux_2_35"
            words = ["pip", "compile", "-q", "--no-deps", "--python-version", python, "--python-platform", platform]
            done = subprocess.run([uv, *words, str(lock), "-o", os.devnull], capture_output=True, text=True)
            assert done.returncode == 0, f"{name}, Python {python}, {machine}: {done.stderr}"


def resolver(folder: Path) -> str:
    """uv: that of the machine, or one in an environment of its own."""
    if found := shutil.which("uv"):
        return found
    venv.create(folder / "uv", with_pip=True)
    command = [str(folder / "uv" / "bin" / "python"), "-m", "pip", "install", "-q", "uv"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"uv is not on this machine, and no package index is within reach: {done.stderr[-300:]}")
    return str(folder / "uv" / "bin" / "uv")
