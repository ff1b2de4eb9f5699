"""What 10,000 recorded rollouts cost the studio: reading them once, then each block of rows that a table asks for.

python benchmarks/studio_rollouts.py [--rollouts 10000]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from roll.report.run_files import read_run
from roll.studio.rollout_index import Query, RolloutIndex

_PER_STEP = 32
_BLOCK = 100
_TIMES = 20
_WORDS = "the sum of two and three is five because addition says so, and so on and so forth "


def make_run(directory: Path, count: int) -> None:
    """Steps of 32 rollouts with answers of 1.6 kB."""
    (directory / "logs").mkdir(parents=True)
    (directory / "rollouts").mkdir()
    steps = range(1, count // _PER_STEP + 2)
    metrics = (json.dumps({"step": step, "rollout/reward_mean": 0.5}) + "\n" for step in steps)
    (directory / "logs" / "metrics.jsonl").write_text("".join(metrics))
    for step in steps:
        numbers = range((step - 1) * _PER_STEP, min(count, step * _PER_STEP))
        rows = (json.dumps(_record(step, number)) + "\n" for number in numbers)
        (directory / "rollouts" / f"step_{step:06d}.jsonl").write_text("".join(rows))


def _record(step: int, number: int) -> dict[str, object]:
    said: dict[str, object] = {
        "prompt_text": f"question {number}",
        "response_text": _WORDS * 20,
        "finish_reason": "stop",
    }
    return said | {"step": step, "domain": "math", "group_id": number // 8, "reward": number % 10 / 10}


def _median_ms(act: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_TIMES):
        begun = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - begun)
    return 1000 * median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=10_000)
    count = parser.parse_args().rollouts
    with tempfile.TemporaryDirectory() as folder:
        make_run(Path(folder), count)
        run, index = read_run(Path(folder)), RolloutIndex()
        begun = time.perf_counter()
        index.update(run)
        print(f"read {index.count(Query())} rollouts: {time.perf_counter() - begun:.2f} s")
        print(f"look again, nothing new: {_median_ms(lambda: index.update(run)):.1f} ms")
        asked = {"all": Query(), "by reward": Query(least_reward=0.9), "search": Query(text=f"QUESTION {count - 7}")}
        for name, query in asked.items():
            for start in (0, count // 2, count - _BLOCK):
                cost = _median_ms(lambda q=query, s=start: index.rows(q, s, s + _BLOCK))
                print(f"{name}, rows from {start}: {cost:.1f} ms")


if __name__ == "__main__":
    main()
