"""The suite for GPUs, rehearsed on a CPU: the same checks, where only device, backend and figures of memory differ."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from roll.utils.imports import resolve
from tests.gpu.__main__ import main
from tests.gpu.check import Check
from tests.gpu.report import Report
from tests.gpu.table import CHECKS


def rehearse(out: Path, *arguments: str) -> dict[str, str]:
    """Every check by name, and what became of it. Nothing may have failed."""
    status = main(["--device", "cpu", "--out", str(out), *arguments])
    report = Report.read(out / "report.json")
    assert status == 0, [f"{outcome.name}: {outcome.reason}" for outcome in report.failures]
    return {outcome.name: outcome.state for outcome in report.outcomes}


@pytest.mark.slow
def test_quick_checks_pass_on_a_cpu(tmp_path: Path) -> None:
    names = ("train-zero3", "train-megatron-distributed", "train-megatron-tp2", "score-hf")
    found = rehearse(tmp_path / "out", "--gpus", "1", "--only", *names)
    assert found == dict.fromkeys(names, "passed") | {"train-megatron-tp2": "skipped"}
    assert "| passed in " in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_can_be_called_with_its_arguments(check: Check) -> None:
    function: Any = resolve(check.function)
    inspect.signature(function).bind(None, **check.arguments)


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_every_check_that_a_cpu_can_run_passes(tmp_path: Path) -> None:
    found = rehearse(tmp_path / "out", "--gpus", "4")
    assert [name for name, state in found.items() if state == "skipped"] == ["train-megatron-te"]
