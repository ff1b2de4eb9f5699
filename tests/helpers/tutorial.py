"""docs/tutorial.md followed: its files and its commands, as they stand on the page, and what they leave."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.helpers.pages import blocks

RUN = Path("output/largest_first")
START = "roll run largest_first.yaml"


def follow(
    folder: Path, environment: Mapping[str, str], before: Callable[[str], None] = lambda command: None
) -> dict[str, list[str]]:
    """Writes the page's files and runs its commands, each told to `before` first; the lines that each printed. A line
    of a `text` block is one that the command before it prints."""
    printed: dict[str, list[str]] = {}
    lines: list[str] = []
    for block in blocks("tutorial.md"):
        if block.title is not None:
            (folder / block.title).write_text(block.text)
        elif block.language == "bash":
            before(block.text.strip())
            printed[block.text.strip()] = lines = in_shell(block.text, folder, environment)
        else:
            assert [line for line in block.text.splitlines() if line not in lines] == [], "\n".join(lines)
    return printed


def in_shell(commands: str, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """The lines that they print; the first that fails ends them and the test."""
    done = subprocess.run(
        ["bash", "-e", "-c", commands], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


def check_outcome(folder: Path, printed: Mapping[str, list[str]]) -> None:
    """Greedy answers to held-out rows began at .29, which is about chance, and were at .91 after 30 steps: .8 leaves
    room for other machines."""
    rows = metrics(folder / RUN / "logs" / "metrics.jsonl")
    assert sorted(rows) == list(range(31)), "20 steps, and 10 more after them"
    assert rows[0]["val/reward_mean"] < 0.4
    assert rows[30]["val/reward_mean"] > 0.8
    assert rows[30]["rollout/right_mean"] > rows[1]["rollout/right_mean"], "the metric of the page's own reward"
    assert max(row["train_infer/log_prob_diff_max"] for step, row in rows.items() if step) < 1e-4  # fp32: rounding
    assert (folder / "report.html").stat().st_size > 10_000
    (measured,) = metrics(folder / RUN / "bench" / "logs" / "metrics.jsonl").values()
    assert measured["val/reward_mean"] == rows[30]["val/reward_mean"]
    assert (folder / RUN / "checkpoints" / "step_000030" / "hf_model" / "model.safetensors").exists()
    (said,) = [lines for command, lines in printed.items() if "roll chat" in command]
    assert any(re.search(r"<answer>\d{4}</answer>", line) for line in said), "\n".join(said)


def metrics(path: Path) -> dict[int, dict[str, float]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["step"]: row for row in rows}
