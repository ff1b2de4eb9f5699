"""The memory of GPUs, as nvidia-smi tells it."""

from pathlib import Path

import pytest

from roll.run.start.machine import smallest_gpu_bytes
from tests.helpers.cases import cases


@cases("script, expected")
def test_the_smallest_gpu_counts_and_no_answer_is_none(
    script: str, expected: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert smallest_gpu_bytes() == expected


def test_a_machine_without_the_tool_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert smallest_gpu_bytes() is None
