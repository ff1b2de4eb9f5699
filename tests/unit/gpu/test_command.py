"""`python -m tests.gpu`: what it refuses before a check runs, and that it takes nothing for a GPU that is none."""

from pathlib import Path

import pytest

from tests.gpu.__main__ import PAGE, REPORTS, main
from tests.gpu.check import Check
from tests.gpu.machine import visible_gpus
from tests.gpu.report import BEGIN, END
from tests.helpers.cases import cases

CHECKS = [Check("one", "", "", "tests.unit.gpu.misbehaving:tells", {}), Check("two", "", "", "", {}, gpus=9)]


def rehearse(*arguments: str) -> int:
    return main(["--device", "cpu", *arguments], CHECKS)


def install_nvidia_smi(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    directory.mkdir()
    (directory / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (directory / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("entry", "told"), [("thesis.txt", "out holds thesis.txt, which no run"), (None, "out is no directory")]
)
def test_a_directory_with_other_things_in_it_is_not_emptied(
    entry: str | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    if entry:
        out.mkdir()
    kept = out / entry if entry else out
    kept.write_text("mine")
    assert rehearse("--out", str(out)) == 2
    assert told in capsys.readouterr().out
    assert kept.read_text() == "mine"


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


@pytest.mark.parametrize("number", ["0", "-1", "two"])
def test_a_number_of_gpus_is_1_or_more(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        rehearse("--gpus", number)
    assert f"'{number}' is no number from 1 up" in capsys.readouterr().err


@pytest.mark.parametrize("page", [None, "without the marks", f"{BEGIN}{END}"])
def test_a_page_that_cannot_be_written_is_told_before_any_check_runs(
    page: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install_nvidia_smi(tmp_path / "bin", monkeypatch, "echo 0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if page is not None:
        (tmp_path / PAGE).write_text(page)
        (tmp_path / REPORTS).mkdir()
        (tmp_path / REPORTS / "bad.json").write_text("{}")
    assert main(["--out", str(tmp_path / "out"), "--reports", str(tmp_path)], CHECKS) == 2
    assert capsys.readouterr().out.startswith("--reports: ")
    assert not (tmp_path / "out").exists()


@cases("script, narrowed, names")
def test_a_gpu_is_what_driver_and_variable_both_name(
    script: str, narrowed: str | None, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_nvidia_smi(tmp_path / "bin", monkeypatch, script)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if narrowed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", narrowed)
    assert visible_gpus() == names
