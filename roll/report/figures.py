"""The numbers of a report: what each run comes to, where its time went, and why things failed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from roll.pipeline.agentic.proxy.transcript.causes import CAUSES
from roll.report.run_files import RunFiles, StepSpread
from roll.report.titles import number_text, phase_title, title_of
from roll.run.bottleneck import bottleneck_of
from roll.run.display.view import Rows, duration, series
from roll.run.health.history import History
from roll.run.health.verdict import Verdict, verdict
from roll.run.records.run_record import RunStart
from roll.run.records.scorecard import comparison
from roll.run.tracking.local import read_metrics
from roll.types.failures import cause_key
from roll.utils.text import show
from roll.utils.timing import phase_seconds

_MOST_CAUSES = 20
_MOST_METRICS = 5_000_000  # bytes that are read whole


@dataclass(frozen=True)
class Failure:
    """A cause of failed attempts, in the training or in a validation."""

    cause: str
    kind: str
    count: int
    first_step: int
    last_step: int


def overview(run: RunFiles) -> list[tuple[str, str]]:
    """Names and values of what a run comes to."""
    return [*progress(run), *headlines(run), *measures(run)]


def progress(run: RunFiles) -> list[tuple[str, str]]:
    """How it ended, after how many steps and how long; of an evaluation, of which step."""
    last = max((step for step, _ in run.rows), default=0)
    if run.is_evaluation:
        return [("ended", ending(run.starts)), ("evaluates", f"the policy of step {last}" if last else "the model")]
    facts = [("ended", ending(run.starts)), ("steps", str(last)), ("health", health(run).label)]
    seconds = sum(sum(phase_seconds(metrics).values()) for _, metrics in run.rows)
    return [*facts, ("time in steps", duration(seconds))] if seconds else facts


def health(run: RunFiles) -> Verdict:
    """Verdict of the rules about a run; of a very long one about its last rows."""
    is_short = run.metrics.is_file() and run.metrics.stat().st_size < _MOST_METRICS
    return verdict(History.of(read_metrics(run.metrics) if is_short else run.rows, run.config))


def symptom_table(run: RunFiles) -> list[tuple[str, str]]:
    """Rows of what the rules found, and what to look for."""
    return [
        (
            f"{symptom.label}: {symptom.diagnosis.says}",
            "; ".join(f"{n}. {c}" for n, c in enumerate(symptom.diagnosis.causes, 1)),
        )
        for symptom in health(run).symptoms
    ]


def headlines(run: RunFiles) -> list[tuple[str, str]]:
    """First and last value of the curves that say whether it learns; of an evaluation, all that it measured."""
    if run.is_evaluation:
        return results(run)
    facts = []
    for name in run.curves:
        if points := series(run.rows, name):
            first, last = points[0][1], points[-1][1]
            facts.append((title_of(name), f"{number_text(first)} → {number_text(last)}"))
    return facts


def results(run: RunFiles) -> list[tuple[str, str]]:
    """Names and values of what the last validation measured."""
    names = sorted({name for _, metrics in run.rows for name in metrics if name.startswith("val/")})
    first = [name for name in run.curves if name in names]
    names = list(dict.fromkeys([*first, *names]))
    return [(title_of(name), number_text(points[-1][1])) for name in names if (points := series(run.rows, name))]


def measures(run: RunFiles) -> list[tuple[str, str]]:
    """The best validation, medians of the machine's figures, and what bounds the last steps."""
    rows, facts = run.rows, []
    if not run.is_evaluation and (points := series(rows, "val/reward_mean")):
        step, best = max(points, key=lambda point: point[1])
        facts.append(("best validation", f"{number_text(best)} at step {step}"))
    for title, name in _MEDIANS:
        if values := [value for _, value in series(rows, name)]:
            facts.append((title, number_text(median(values))))
    causes = Counter(bound.text for _, metrics in rows[-_BOUND_STEPS:] if (bound := bottleneck_of(metrics)) is not None)
    if causes:
        facts.append(("bound by", max(causes, key=lambda text: causes[text])))
    if (compared := comparison(run.metrics.parent)) is not None:
        facts.append(("forecast", compared[1]))
    return facts


_BOUND_STEPS = 20
_MEDIANS = (
    ("seconds per step", "time/step_s"),
    ("tokens trained per s", "goodput/trained_tokens_per_s"),
    ("devices idle", "goodput/bubble_fraction"),
    ("model FLOPs utilisation", "goodput/mfu_fraction"),
)


def ending(starts: Sequence[RunStart]) -> str:
    if not starts:
        return "not known: no run.json"
    last = starts[-1]
    if last.exit_code is None:
        return "running, or killed without a trace"
    return {0: "finished", 130: "stopped (Ctrl-C)", 143: "stopped (SIGTERM)", 129: "stopped (SIGHUP)"}.get(
        last.exit_code, f"failed, exit code {last.exit_code}"
    )


def phase_table(rows: Rows) -> list[tuple[str, str, str]]:
    """Phase, seconds in all, share; the longest first."""
    totals: Counter[str] = Counter()
    for _, metrics in rows:
        totals.update(phase_seconds(metrics))
    whole = sum(totals.values())
    return [
        (phase_title(name), duration(seconds), f"{seconds / whole:.1%}")
        for name, seconds in totals.most_common()
        if whole
    ]


def role_table(rows: Rows) -> list[tuple[str, str]]:
    """How busy each role was, as the mean over the steps."""
    names = sorted({name for _, metrics in rows for name in metrics if name.startswith("busy/")})
    means = {name: [value for _, value in series(rows, name)] for name in names}
    return [
        (name.removeprefix("busy/").removesuffix("_fraction"), f"{sum(values) / len(values):.0%}")
        for name, values in means.items()
        if values
    ]


def failures(spreads: Sequence[StepSpread]) -> list[Failure]:
    """The most frequent causes first."""
    by_cause: dict[object, Failure] = {}
    for spread in sorted(spreads, key=lambda spread: spread.step):
        for each in spread.failures:
            key = cause_key(each.cause), spread.kind
            text = f"{each.cause}\n  first for {each.first}"
            before = by_cause.get(key) or Failure(text, spread.kind, 0, spread.step, spread.step)
            by_cause[key] = replace(before, count=before.count + each.count, last_step=spread.step)
    return sorted(by_cause.values(), key=lambda failure: -failure.count)[:_MOST_CAUSES]


_BROKEN = "agentic/prefix_broken_fraction"  # of every step that played a program


def prefix_table(rows: Rows) -> list[tuple[str, str]]:
    """Why requests of programs did not follow what was sampled, and their share of those with a response in their
    history, as a mean over the steps that played programs; the most frequent cause first."""
    played = [metrics for _, metrics in rows if _BROKEN in metrics]
    names = {f"agentic/broken_{cause}_fraction": text for cause, text in CAUSES.items()}
    shares = {
        text: sum(metrics.get(name, 0.0) for metrics in played) / len(played) for name, text in names.items() if played
    }
    return [(text, f"{share:.1%}") for text, share in sorted(shares.items(), key=lambda pair: -pair[1]) if share]


# The configuration of a run as lines, and where two differ.

ABSENT = "(not there)"


def flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Each value by its path. Example: {"a": {"b": [1, {"c": 2}]}} -> {"a.b": "[1, {'c': 2}]"}; lists stay whole."""
    return {key: value if isinstance(value, str) else show(value, 500) for key, value in leaves(config).items()}


def leaves(node: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The same with the values as they are."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        inner = f"{path}.{key}" if path else str(key)
        found |= leaves(value, inner) if isinstance(value, Mapping) and value else {inner: value}
    return found


def differing(
    configs: Sequence[Mapping[str, Any]], settings: Sequence[Mapping[str, Any]] = ()
) -> list[tuple[str, list[str]]]:
    """The keys that some of the configurations have otherwise, with the value in each: learning rates first, then what
    the runs were given (`settings`), then what follows. Without paths that differ in output_dir and exp_name alone,
    and, if `settings` tell, without the defaults of a section that only some have."""
    flat_configs = [flat(config) for config in configs]
    keys = dict.fromkeys(key for tree in flat_configs for key in tree)
    chosen = {key for tree in settings for key in flat(tree)}
    if settings and all(settings):
        keys = [key for key in keys if key in chosen or all(key in tree for tree in flat_configs)]
    rows = [(key, [tree.get(key, ABSENT) for tree in flat_configs]) for key in keys]
    rows = [(key, values) for key, values in rows if len(set(values)) > 1]
    rows = [(key, values) for key, values in rows if len(set(_compared(key, values, flat_configs))) > 1]
    return sorted(rows, key=lambda row: (not row[0].endswith("learning_rate"), bool(chosen) and row[0] not in chosen))


def _compared(key: str, values: Sequence[str], configs: Sequence[Mapping[str, str]]) -> list[str]:
    if key in _NAMES:
        return list(values)
    return [_without_names(value, config) for value, config in zip(values, configs, strict=True)]


_NAMES = ("output_dir", "exp_name")


def _without_names(value: str, config: Mapping[str, str]) -> str:
    """A path with the values of output_dir and exp_name as their keys. Example: /a/run/logs -> {output_dir}/logs."""
    for key in _NAMES:
        if "/" in value and (name := config.get(key)):
            value = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", f"{{{key}}}", value)
    return value
