"""Recorded episodes, turn by turn: `python -m roll.pipeline.agentic.replay FILE [--tag TAG] [--group ID] [--failed]`.

FILE is a `step_*.jsonl` below rollouts/ of a run's output directory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Shows recorded episodes turn by turn.")
    parser.add_argument("file", type=Path, help="step_*.jsonl of a run's rollouts directory")
    parser.add_argument("--tag", help="episodes of this environment only")
    parser.add_argument("--group", help="episodes of this group only")
    parser.add_argument("--failed", action="store_true", help="episodes that failed only")
    given = parser.parse_args(arguments)
    try:
        records = list(read(given.file))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{given.file} cannot be read: {error}\n")
        return 2
    chosen = [
        record
        for record in records
        if (given.tag is None or record["domain"] == given.tag)
        and (given.group is None or str(record["group_id"]) == given.group)
        and (not given.failed or record["reward"] is None)
    ]
    try:
        sys.stdout.writelines(line + "\n" for record in chosen for line in render(record))
        sys.stdout.write(f"{len(chosen)} of {len(records)} episodes in {given.file}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough; nothing is left to flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def read(file: Path) -> Iterator[dict[str, Any]]:
    """The records of a file. Raises ValueError for what is none."""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} is no JSON: {error}") from None
        if not isinstance(record, dict) or not {"domain", "group_id", "reward"} <= record.keys():
            raise ValueError(f"line {number} is no record of a rollout")
        yield record


def render(record: Mapping[str, Any]) -> Iterator[str]:
    """One episode as lines of text."""
    reward = record["reward"]
    outcome = f"failed: {record.get('extra', {}).get('failure')}" if reward is None else f"reward {reward:.4g}"
    yield f"{'=' * 8} {record['domain']}, step {record.get('step')}, group {record['group_id']}: {visible(outcome)}"
    total = 0.0
    for number, turn in enumerate(record.get("turns") or (), 1):
        total += turn["reward"]
        action = "no action" if turn["action"] is None else f"action {turn['action']!r}"
        earned = f"reward {turn['reward']:+.4g}, in all {total:+.4g}"
        yield f"--- turn {number}: {action}, {earned}{_metrics(turn['metrics'])}"
        yield from _indented("sees ", turn["observation"])
        yield from _indented("says ", turn["response"])
    yield ""


def visible(text: str) -> str:
    """Control characters spelled out: what a model wrote cannot steer the reader's terminal."""
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def _metrics(metrics: Mapping[str, float]) -> str:
    shown = ", ".join(f"{name} {value:g}" for name, value in metrics.items() if name != "answer_cut")
    return f" ({shown})" if shown else ""


def _indented(first: str, text: str) -> Iterable[str]:
    lines = visible(text).split("\n")
    return [(first if i == 0 else " " * len(first)) + line for i, line in enumerate(lines)]


if __name__ == "__main__":
    sys.exit(main())
