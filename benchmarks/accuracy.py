"""Does a demo learn as well in another way, and how much sooner? Over several seeds.

    python examples/tiny-sort/prepare.py --out output/tiny-sort
    python benchmarks/accuracy.py ahead --data output/tiny-sort --results sort.jsonl [--seeds 1 2 3 4 5]
    python benchmarks/accuracy.py ahead --results sort.jsonl --table

`ahead` compares rollouts that run ahead with synchronous ones on tiny-sort, `ahead-agentic` on tiny-frozen-lake,
`trainers` the strategies that train tiny-sort, `sharing` and `sharing-agentic` prefixes that are computed once. A line
of the results is a run; runs that are there already are not made again, so that seeds can be added. Variants take turns
within a seed, so that a busy machine disturbs all alike; seconds are worth something only with --at_once 1 on an idle
machine, and leave out validation and checkpoints.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, combinations
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from ratios import describe_ratios

from roll.run.tracking.local import METRICS_FILE, read_metrics
from roll.utils.timing import phase_seconds

REPOSITORY = Path(__file__).resolve().parents[1]
FIRST = ("actor/pg_loss", "actor/entropy_mean", "actor/grad_norm")
SCHEDULES: Mapping[str, Sequence[str]] = {
    "synchronous": (),
    "r 1 S 2": ("async_generation_ratio=1", "max_staleness=2"),
    "r .5 S 2, shared": (
        "async_generation_ratio=0.5",
        "max_staleness=2",
        "num_gpus_per_node=1",
        "actor_infer.device_mapping=[0]",
    ),
}
TRAINERS: Mapping[str, Sequence[str]] = {
    "deepspeed_train": (),
    **{
        name: (f"actor_train.strategy_args.strategy_name={name}", "~actor_train.strategy_args.strategy_config")
        for name in ("fsdp2_train", "megatron_train")
    },
}

SHARING: Mapping[str, Sequence[str]] = {
    name: (f"+actor_train.use_prefix_sharing={way}",) for name, way in (("apart", "off"), ("shared", "on"))
}


@dataclass(frozen=True)
class Demo:
    """`accuracy` is its metric of greedy validation, on rows that are not in the training data. `variants` are
    overrides by name; the others are compared with the first."""

    folder: str
    start: str
    config: str
    data: str
    accuracy: str
    steps: int
    variants: Mapping[str, Sequence[str]]


_SORT = ("tiny-sort", "start_rlvr_pipeline", "tiny_sort", "TINY_SORT_DIR", "val/reward_mean", 100)
_LAKE = (
    "tiny-frozen-lake",
    "start_agentic_pipeline",
    "tiny_frozen_lake",
    "TINY_FROZEN_LAKE_DIR",
    "val/success_mean",
    40,
)
DEMOS = {
    "ahead": Demo(*_SORT, SCHEDULES),
    "ahead-agentic": Demo(*_LAKE, SCHEDULES),
    "trainers": Demo(*_SORT, TRAINERS),
    "sharing": Demo(*_SORT, SHARING),
    "sharing-agentic": Demo(*_LAKE, SHARING),
}


@dataclass(frozen=True)
class Result:
    """`accuracy` and `seconds` (since the start of the training) by the number of steps done; figures
    of the `first` update."""

    variant: str
    seed: int
    accuracy: dict[int, float]
    seconds: dict[int, float]
    first: dict[str, float]
    staleness_mean: float
    staleness_max: float

    @property
    def steps(self) -> int:
        return max(self.accuracy)

    def reaches(self, accuracy: float) -> int | None:
        """The first validation with at least this accuracy, by its step."""
        return min((step for step, found in self.accuracy.items() if found >= accuracy), default=None)


def run(demo: Demo, data: Path, variant: str, seed: int, eval_steps: int | None) -> Result:
    with tempfile.TemporaryDirectory() as output:
        overrides = [f"output_dir={output}", f"logging_dir={output}", f"seed={seed}", f"max_steps={demo.steps}"]
        overrides += [f"eval_steps={eval_steps or demo.steps // 4}", "save_steps=-1", "track_with=[jsonl]"]
        place = ["--config_path", demo.folder, "--config_name", demo.config]
        command = [sys.executable, f"examples/{demo.start}.py", *place, *overrides, *demo.variants[variant]]
        environment = os.environ | {demo.data: str(data.absolute()), "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{variant}, seed {seed}: the run failed:\n{done.stderr[-3000:]}")
        return result_of(variant, seed, demo.accuracy, read_metrics(Path(output) / METRICS_FILE))


def result_of(variant: str, seed: int, metric: str, steps: Iterable[tuple[int, Mapping[str, float]]]) -> Result:
    rows = dict(steps)
    trained = [step for step in sorted(rows) if step]
    seconds = dict(zip(trained, accumulate(_trained_s(rows[step]) for step in trained), strict=True))
    accuracy = {step: round(row[metric], 4) for step, row in rows.items() if metric in row}
    return Result(
        variant,
        seed,
        accuracy,
        {step: round(seconds.get(step, 0.0), 3) for step in accuracy},
        {name: rows[1][name] for name in FIRST},
        round(statistics.fmean(rows[step].get("rollout/staleness_mean", 0.0) for step in trained), 3),
        max(rows[step].get("rollout/staleness_max", 0.0) for step in trained),
    )


def _trained_s(row: Mapping[str, float]) -> float:
    return sum(seconds for phase, seconds in phase_seconds(row).items() if phase not in ("validate", "checkpoint"))


def read_results(path: Path) -> list[Result]:
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    by_step = ("accuracy", "seconds")
    return [Result(**row | {key: {int(k): v for k, v in row[key].items()} for key in by_step}) for row in found]


def table(results: Sequence[Result], demo: Demo) -> Iterator[str]:
    """Accuracy after each quarter as `mean (lowest-highest)`."""
    quarters = [demo.steps * part // 4 for part in (1, 2, 3, 4)]
    yield "| variant | seeds | " + " | ".join(f"{step} steps" for step in quarters) + " | staleness mean, max |"
    yield "|---|---|" + "---|" * (len(quarters) + 1)
    for variant, runs in _by_variant(results, demo).items():
        cells = [_spread([run.accuracy[step] for run in runs]) for step in quarters]
        ages = f"{statistics.fmean(run.staleness_mean for run in runs):.2f}, {max(r.staleness_max for r in runs):g}"
        yield f"| {variant} | {len(runs)} | {' | '.join(cells)} | {ages} |"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3f} ({min(values):.3f}-{max(values):.3f})"


def pairs(results: Sequence[Result], demo: Demo, accuracy: float) -> Iterator[str]:
    """Each run beside that of its seed in the first variant: seconds of all steps, and until validation is so accurate;
    how far their first updates are apart."""
    first, *others = demo.variants
    by_variant = _by_variant(results, demo)
    base = {run.seed: run for run in by_variant.get(first, ())}
    for variant in others:
        both = [(base[run.seed], run) for run in by_variant.get(variant, ()) if run.seed in base]
        if not both:
            continue
        whole = [one.seconds[one.steps] / other.seconds[other.steps] for one, other in both]
        yield f"{variant}: {describe_ratios(whole)}, in seconds of all steps"
        reached = [(one, one.reaches(accuracy), other, other.reaches(accuracy)) for one, other in both]
        until = [a.seconds[i] / b.seconds[j] for a, i, b, j in reached if i is not None and j is not None]
        if until:
            yield f"{variant}: {describe_ratios(until)}, in seconds until validation reaches {accuracy:g}"
        apart = {name: max(abs(one.first[name] - other.first[name]) for one, other in both) for name in FIRST}
        told = ", ".join(f"{name} by {most:.1e}" for name, most in apart.items())
        yield f"{variant}: in the first step differ at most {told}"


def curves(results: Sequence[Result], demo: Demo) -> Iterator[str]:
    """How far the validations of two runs are apart, in the mean: of the same seed in two variants, and of two seeds in
    the first variant."""
    first, *others = demo.variants
    by_variant = _by_variant(results, demo)
    base = by_variant.get(first, [])
    seeds = [_apart(one, other) for one, other in combinations(base, 2)]
    for variant in others:
        same = [_apart(one, run) for run in by_variant.get(variant, ()) for one in base if one.seed == run.seed]
        if same and seeds:
            yield f"{variant}: curves of a seed are {_spread(same)} apart, those of two seeds {_spread(seeds)}"


def _apart(one: Result, other: Result) -> float:
    steps = [step for step in one.accuracy if step and step in other.accuracy]
    return statistics.fmean(abs(one.accuracy[step] - other.accuracy[step]) for step in steps)


def _by_variant(results: Sequence[Result], demo: Demo) -> dict[str, list[Result]]:
    return {name: found for name in demo.variants if (found := [run for run in results if run.variant == name])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", choices=DEMOS)
    parser.add_argument("--data", type=Path, help="directory made by the demo's prepare.py")
    parser.add_argument("--results", type=Path, required=True, help="file of runs, one a line; new ones are added")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--variants", nargs="+", help="some of them, by the names in the table. Default: all")
    parser.add_argument("--steps", type=int, help="of a run, a multiple of 4. Default: the demo's")
    parser.add_argument("--eval_steps", type=int, help="a divisor of a quarter of the steps. Default: that quarter")
    parser.add_argument("--at_once", type=int, default=1, help="runs at the same time")
    parser.add_argument("--accuracy", type=float, default=0.98, help="until which seconds are compared")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    demo = DEMOS[options.demo]
    demo = replace(demo, steps=options.steps or demo.steps)
    if unknown := set(options.variants or ()) - set(demo.variants):
        parser.error(f"--variants: there is no {', '.join(sorted(unknown))}; there are {', '.join(demo.variants)}")
    if not options.table:
        if options.data is None:
            parser.error("--data is needed, but for --table")
        _run_missing(demo, options)
    results = read_results(options.results)
    print(*table(results, demo), *pairs(results, demo, options.accuracy), *curves(results, demo), sep="\n")


def _run_missing(demo: Demo, options: argparse.Namespace) -> None:
    there = {(run.variant, run.seed) for run in read_results(options.results)}
    names = options.variants or demo.variants
    missing = [(name, seed) for seed in options.seeds for name in names if (name, seed) not in there]
    with ThreadPoolExecutor(options.at_once) as pool, options.results.open("a", encoding="utf-8") as file:
        futures = [pool.submit(run, demo, options.data, *one, options.eval_steps) for one in missing]
        try:
            for future in as_completed(futures):
                line = json.dumps(asdict(future.result()))
                print(line, flush=True)
                file.write(line + "\n")
                file.flush()
        finally:
            pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    main()
