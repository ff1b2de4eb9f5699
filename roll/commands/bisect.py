"""`roll bisect`: the first thing that differs between two runs, from what they recorded of each step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from roll.commands.fork import checkpoints_of
from roll.commands.options import bisect_parser
from roll.errors import ConfigError
from roll.report.figures import differing
from roll.report.run_files import RunFiles, read_run
from roll.run.records.digests import DIGESTS_FILE, ORDER, PROMPTS, read_digests
from roll.run.saving.manifest import read_manifest
from roll.types.row_numbers import ROW_STAGES
from roll.utils.text import counted

_MOST_KEYS = 10
_METRICS = {  # of the stages behind the rows, in the order in which a step computes them
    "loss": ("actor/pg_loss", "train/loss", "train/nll_mean", "train/divergence_mean"),
    "entropy": ("actor/entropy_mean",),
    "gradient norm": ("actor/grad_norm", "train/grad_norm"),
    "learning rate": ("actor/learning_rate", "train/learning_rate"),
}
_WEIGHTS = "weights"
STAGES = (PROMPTS, ORDER, *ROW_STAGES[1:], *_METRICS, _WEIGHTS)


class Entry(NamedTuple):
    """Record of a stage in a step: its digest is equal if the stage was. `value` shows by how much it differs."""

    digest: str
    value: float | None = None


Steps = Mapping[int, Mapping[str, Entry]]


def run(argv: Sequence[str]) -> Iterator[str]:
    """Lines of what differs. Raises ConfigError where two runs cannot be compared."""
    options = bisect_parser().parse_args(argv)
    runs = [read_run(Path(name).absolute()) for name in (options.first, options.second)]
    yield from _settings_lines(runs)
    one, other = (steps_of(run) for run in runs)
    steps = sorted(one.keys() & other.keys())
    if not steps:
        ends = " and ".join(f"{min(lines)} to {max(lines)}" for lines in (one, other))
        raise ConfigError(f"the runs have no step in common: they have steps {ends}.")
    yield from _step_lines(one, other, steps)


def _settings_lines(runs: Sequence[RunFiles]) -> Iterator[str]:
    different = differing([run.config for run in runs], [run.settings for run in runs])
    keys = [(key, values) for key, values in different if key not in ("output_dir", "exp_name")]
    yield f"keys of the configuration that differ: {len(keys) or 'none'}"
    yield from (f"  {key}: {values[0]} | {values[1]}" for key, values in keys[:_MOST_KEYS])
    if len(keys) > _MOST_KEYS:
        yield f"  and {len(keys) - _MOST_KEYS} more: roll report shows all"
    versions = [f"{run.roll_version} {run.starts[-1].commit if run.starts else ''}".strip() for run in runs]
    if versions[0] != versions[1]:
        yield f"version of roll: {versions[0]} | {versions[1]}"


def _step_lines(one: Steps, other: Steps, steps: Sequence[int]) -> Iterator[str]:
    for name, run, rest in (("first", one, other), ("second", other, one)):
        alone = {stage for step in steps for stage in run[step]} - {stage for step in steps for stage in rest[step]}
        if alone:
            yield f"only in the {name} run: {', '.join(stage for stage in STAGES if stage in alone)}"
    first_gaps: dict[str, int] = {}  # the first step in which a stage differs
    for step in steps:
        for stage in STAGES:
            if stage in one[step] and stage in other[step] and one[step][stage].digest != other[step][stage].digest:
                first_gaps.setdefault(stage, step)
    if not first_gaps:
        yield f"no difference in {counted(len(steps), 'step')}, {steps[0]} to {steps[-1]}"
        return
    begin = min(first_gaps.values())
    first = next(stage for stage in STAGES if first_gaps.get(stage) == begin)
    equal = [stage for stage in STAGES[: STAGES.index(first)] if stage in one[begin] and stage in other[begin]]
    before = [f"steps {steps[0]} to {begin - 1}"] if begin > steps[0] else []
    before += [f"in step {begin} {', '.join(equal)}"] if equal else []
    yield f"first difference: step {begin}, {first}{_by(one[begin][first], other[begin][first])}"
    yield f"  equal before it: {'; '.join(before) or 'nothing'}"
    del first_gaps[first]
    for stage, step in sorted(first_gaps.items(), key=lambda gap: (gap[1], STAGES.index(gap[0]))):
        yield f"  then {stage}: step {step}{_by(one[step][stage], other[step][stage])}"


def steps_of(run: RunFiles) -> Steps:
    """Raises ConfigError for a run without digests."""
    lines, rows = read_digests(run.logs / DIGESTS_FILE), dict(run.rows)
    if not lines:
        raise ConfigError(f"{run.logs / DIGESTS_FILE} has no step: the run trained none, or an earlier roll made it.")
    checkpoints = {int(path.name.removeprefix("step_")): path for path in checkpoints_of(run)}
    steps: dict[int, dict[str, Entry]] = {}
    for step, line in lines.items():
        steps[step] = {stage: Entry(digest, line.means.get(stage)) for stage, digest in line.digests.items()}
        for stage, names in _METRICS.items():
            if values := [rows[step][name] for name in names if name in rows.get(step, {})]:
                steps[step][stage] = Entry(str(values[0]), values[0])
        if step in checkpoints:
            files = read_manifest(checkpoints[step]).digests
            steps[step][_WEIGHTS] = Entry(str({file: files[file] for file in files if file.endswith(".safetensors")}))
    return steps


def _by(one: Entry, other: Entry) -> str:
    if one.value is None or other.value is None:
        return ""
    gap = other.value - one.value
    return f" ({one.value:.6g} | {other.value:.6g}{f', {gap:+.2g}' if math.isfinite(gap) else ''})"
