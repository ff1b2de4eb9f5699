"""Runs the faults and the healthy runs of health_proof.yaml, and counts what the rules of roll/run/health say of them.

    python benchmarks/health_proof.py [--out output/health-proof] [--seeds 1 2] [--round 2] [--only NAME ...] [--judge]

Each run takes about a minute. One that is already in --out is not repeated; `--judge` starts none. What counts is the
first verdict at the end of a run: it hits if it contains the expected words, written down before the rules were read.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from roll.report.run_files import read_run
from roll.run.health.history import History
from roll.run.health.verdict import verdict
from roll.run.tracking.local import METRICS_FILE, read_metrics

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"
STEPS = 40
SORT, COLD, LAKE, COUNT, TOOLS = "sort", "cold", "lake", "count", "tools"  # folders with a model and its rows
PREPARED = {
    SORT: ("tiny-sort",),
    COLD: ("tiny-sort", "--steps", "0"),
    LAKE: ("tiny-frozen-lake",),
    COUNT: ("tiny-count",),
    TOOLS: ("tiny-tools",),
}
ROWS = {"tiny_sort_dpo": "pairs.jsonl", "tiny_sort_rm": "pairs.jsonl"}  # the training rows of an example
ROLES = {"tiny_sort_sft": "sft_train", "tiny_sort_rm": "reward_train", "tiny_sort_distill": "student"}
TEACHER = "tiny_sort_sft"  # the run that makes the teacher of tiny_sort_distill


def read_cases() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    table = yaml.safe_load((HERE / "health_proof.yaml").read_text(encoding="utf-8"))
    return table["faults"], table["healthy"]


def prepare(out: Path) -> None:
    for folder, (example, *words) in PREPARED.items():
        script = EXAMPLES / example / "prepare.py"
        subprocess.run([sys.executable, str(script), "--out", str(out / folder), *words], check=True)
    if not (out / SORT / TEACHER / "logs/summary.json").exists():
        _run(EXAMPLES / f"tiny-sort/{TEACHER}.yaml", ["eval_steps=-1"], out, out / "teacher.log")


def run(case: Mapping[str, Any], seed: int, out: Path) -> None:
    """Make the run of a case unless it is there."""
    folder = out / f"{case['name']}-{seed}"
    if (folder / "logs/summary.json").exists():
        return
    data = out / (COLD if case.get("cold") else SORT)
    example = Path(case["run"]).name
    rows = _spoilt(case, data, folder) if "rows" in case else None
    places = {name: str(out / name) for name in PREPARED} | {"rows": str(rows)}
    words = [re.sub(r"\{(\w+)\}", lambda found: places.get(found[1], found[0]), word) for word in case.get("keys", [])]
    if rows:
        words.append(f"{ROLES.get(example, 'actor_train')}.data_args.file_name={rows}")
    words = [
        f"output_dir={folder}",
        f"max_steps={STEPS}",
        "save_steps=-1",
        f"seed={seed}",
        "overwrite_output_dir=true",
        *([] if any(word.startswith("eval_steps") for word in words) else ["eval_steps=-1"]),
        *words,
    ]
    folder.mkdir(parents=True, exist_ok=True)
    _run(EXAMPLES / f"{case['run']}.yaml", words, out, out / f"{folder.name}.log", data)


def _run(example: Path, words: Sequence[str], out: Path, log: Path, data: Path | None = None) -> None:
    places = {f"TINY_{name.upper()}_DIR": str(out / name) for name in (SORT, COUNT, TOOLS)}
    places["TINY_FROZEN_LAKE_DIR"] = str(out / LAKE)
    if data is not None:
        places["TINY_SORT_DIR"] = str(data)
    paths = (HERE.parent, HERE, example.parent)
    with log.open("wb") as stream:
        subprocess.run(
            [sys.executable, "-m", "roll", "run", str(example), *words],
            env={**os.environ, **places, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=out,
            check=False,
        )


def _spoilt(case: Mapping[str, Any], data: Path, folder: Path) -> Path:
    name = ROWS.get(Path(case["run"]).name, "train.jsonl")
    rows = [json.loads(line) for line in (data / name).read_text(encoding="utf-8").splitlines()]
    spoilt = getattr(importlib.import_module("health_faults"), case["rows"])(rows)
    path = folder.with_name(f"{folder.name}.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in spoilt), encoding="utf-8")
    return path


def judge(case: Mapping[str, Any], folder: Path) -> tuple[str, str, str]:
    """Return label, first cause and result of a run. A healthy one may not be accused at its end."""
    found = read_run(folder)
    result = verdict(History.of(read_metrics(found.metrics), found.config))
    first = result.symptoms[0] if result.symptoms else None
    cause = next(iter(first.diagnosis.causes), None) if first else None
    if "names" not in case:
        outcome = "false alarm" if result.is_ill else "ok"
    elif first is None:
        outcome = "missed"
    else:
        outcome = "hit" if re.search(case["names"], "\n".join(first.lines()), re.IGNORECASE) else "wrong cause"
    return result.label, str(cause or ""), outcome


def main() -> None:
    parser = argparse.ArgumentParser(description="Prove the rules of health on planted faults.")
    parser.add_argument("--out", type=Path, default=Path("output/health-proof"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--round", type=int, help="the cases of one round")
    parser.add_argument("--only", nargs="*", help="names of cases")
    parser.add_argument("--judge", action="store_true", help="start no run")
    options = parser.parse_args()
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    if not options.judge:
        prepare(out)
    faults, healthy = read_cases()
    cases = [
        case
        for case in [*faults, *healthy]
        if options.round in (None, case.get("round", 1)) and (not options.only or case["name"] in options.only)
    ]
    counts: Counter[str] = Counter()
    for seed in options.seeds:
        for case in cases:
            if not options.judge:
                run(case, seed, out)
            if (out / f"{case['name']}-{seed}/logs/{METRICS_FILE}").is_file():
                label, cause, outcome = judge(case, out / f"{case['name']}-{seed}")
                print(f"| {case['name']} | {seed} | {label} | {cause} | {outcome} |", flush=True)
                counts[outcome] += 1
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))


if __name__ == "__main__":
    main()
