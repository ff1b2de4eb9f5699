"""`python -m tests.gpu`: what it refuses before a check runs, and that it takes nothing for a GPU that is none."""

from pathlib import Path

import pytest

from tests.gpu.__main__ import main
from tests.gpu.check import Check
from tests.gpu.machine import visible_gpus
from tests.helpers.cases import cases

CHECKS = [Check("one", "", "", "tests.unit.gpu.misbehaving:tells", {}), Check("two", "", "", "", {}, gpus=9)]


def rehearse(*arguments: str) -> int:
    return main(["--device", "cpu", *arguments], CHECKS)


def install_nvidia_smi(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    directory.mkdir()
    (directory / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (directory / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


def test_a_directory_with_other_things_in_it_is_not_emptied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert rehearse("--out", str(tmp_path)) == 2
    assert "holds what no run left there" in capsys.readouterr().out
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_a_relative_directory_is_that_of_the_caller_and_its_own_report_is_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert rehearse("--out", "out") == 0
    assert (tmp_path / "out" / "one" / "answer.json").exists()
    assert rehearse("--out", "out", "--only", "two") == 2
    assert not (tmp_path / "out" / "one").exists()


def test_a_name_that_no_check_has_is_told_beside_names_that_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rehearse("--only", "one", "tow", "--out", str(tmp_path / "out")) == 2
    assert capsys.readouterr().out == "no check is called tow; there are: one, two\n"


@cases("script, narrowed, names")
def test_a_gpu_is_what_driver_and_variable_both_name(
    script: str, narrowed: str | None, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_nvidia_smi(tmp_path / "bin", monkeypatch, script)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if narrowed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", narrowed)
    assert visible_gpus() == names
