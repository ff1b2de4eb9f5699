"""The memory of GPUs, as nvidia-smi tells it."""

from pathlib import Path

import pytest

from roll.run.start.machine import smallest_gpu_bytes


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("printf '81559\\n40960\\n'", 40960 * 2**20),
        ("echo 'No devices were found'", None),
        ("echo '[N/A]'", None),
        ("exit 9", None),
        ("true", None),
    ],
)
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
