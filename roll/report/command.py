"""The page: what is shown of the runs, and in which order. It has no script; all texts are escaped by the template."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from roll.errors import ConfigError
from roll.report.about import about, title_of_runs
from roll.report.charts import (
    COLORS,
    Line,
    histogram,
    limit_of,
    line_chart,
    phase_chart,
    share_of_larger,
    spread_chart,
)
from roll.report.conversation import requests_of
from roll.report.figures import (
    differing,
    failures,
    flat,
    headlines,
    measures,
    phase_table,
    prefix_table,
    progress,
    results,
    role_table,
    symptom_table,
)  # fmt: skip
from roll.report.options import argument_parser
from roll.report.palette import LOGO_ADDRESS
from roll.report.run_files import Quantiles, RunFiles, StepSpread, read_run, runs_at
from roll.report.samples import GAP_STEPS, SampleReader, StepSamples, thumbnail
from roll.report.titles import number_text, title_of
from roll.run.display.view import series
from roll.run.records.replay import Recorded
from roll.utils.files import write_whole
from roll.utils.text import visible
from roll.utils.version import VERSION

MOST_RUNS = len(COLORS)
_MAIN: Mapping[str, Sequence[str]] = {
    "Learning": ("rollout/truncated_fraction", "rollout/group_equal_rewards_fraction", "rollout/failed_fraction"),
    "Lengths": ("rollout/response_length_mean", "val/response_length_mean"),
    "Policy": (
        "actor/entropy_mean", "actor/grad_norm", "actor/approx_kl", "actor/kl_mean", "actor/clip_fraction",
        "train/grad_norm", "actor/learning_rate", "train/learning_rate",
    ),
    "Speed": ("time/step_s", "goodput/trained_tokens_per_s"),
}  # fmt: skip
_DRIFT = ("train_infer/", "rollout/staleness_", "actor/ratio_")
_TITLES = {
    "rollout": "Rollouts", "env": "Environments", "val": "Validation", "actor": "Policy", "critic": "Critic",
    "train": "Training", "train_infer": "Engine and trainer", "time": "Times", "goodput": "Goodput", "busy": "Busy",
    "throughput": "Throughput", "mfu": "FLOPs utilisation", "memory": "Memory", "sync": "Weights",
}  # fmt: skip


@dataclass(frozen=True)
class Chart:
    title: str
    image: str


@dataclass(frozen=True)
class Page:
    """`html`, and what is in it."""

    html: str
    num_charts: int
    num_samples: int


def render(runs: Sequence[RunFiles], num_steps: int, back: str = "") -> Page:
    """`num_steps`: of how many steps of each run samples are shown. The first run is what the others are held
    against. `back`: the address of the page that the report was opened from."""
    labels = _labels(runs)
    names = sorted({name for run in runs for _, metrics in run.rows for name in metrics})
    curves = _Curves(runs, labels)
    drift = [name for name in names if name.startswith(_DRIFT) and not _is_flat(runs, name)]
    owners = list(dict.fromkeys(name.partition("/")[0] for name in names))
    reader = SampleReader()
    samples = [(label, reader.of_run(run, num_steps)) for label, run in zip(labels, runs, strict=True)]
    spreads = [run.spreads() for run in runs]
    context = {
        "version": VERSION,
        "title": title_of_runs(runs, labels),
        "back": back,
        "runs": [
            {
                "label": label,
                "color": color,
                "directory": run.directory,
                "about": about(run).lines(),
                "headlines": headlines(run)[:_MOST_HEADLINES],
                "overview": [*progress(run), *measures(run)],
                "symptoms": [] if run.is_evaluation else symptom_table(run),
                "results": results(run) if run.is_evaluation else [],
                "starts": run.starts,
                "is_calm": _is_calm(run, run_spreads),
                "phases": phase_table(run.rows),
                "roles": role_table(run.rows),
                "phase_chart": phase_chart(run.rows),
                "spreads": _spread_charts(run_spreads),
                "failures": failures(run_spreads),
                "prefixes": prefix_table(run.rows),
                "warnings": run.warnings()[-_MOST_WARNINGS:],
                "config": flat(run.config),
            }
            for label, color, run, run_spreads in zip(labels, COLORS, runs, spreads, strict=False)
        ],
        "are_evaluations": all(run.is_evaluation for run in runs),
        "first": {title: curves.charts(group) for title, group in main_metrics(runs, names).items()},
        "drift": curves.charts(drift),
        "owners": [
            (_TITLES.get(owner, owner), curves.charts(name for name in names if name.split("/")[0] == owner))
            for owner in owners
        ],
        "samples": samples,
        "gap_steps": GAP_STEPS,
        "differing": differing([run.config for run in runs], [run.settings for run in runs]),
    }
    html = environment().get_template("page.html.j2").render(context)
    return Page(html, curves.num_drawn, sum(_count(steps) for _, steps in samples))


def environment() -> Environment:
    """Environment of all templates. Every text is escaped, and invisible characters are shown."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    templates.globals |= {"thumbnail": thumbnail, "number_text": number_text, "requests_of": requests_of}
    templates.globals["logo"] = LOGO_ADDRESS
    return templates


def main_metrics(runs: Sequence[RunFiles], names: Collection[str]) -> dict[str, list[str]]:
    """The metrics that tell best how the runs do, among those that exist, in groups by title. One that never changes
    is left out, unless it is a share above 0."""
    curves = list(dict.fromkeys(each for run in runs for each in run.curves))
    groups = {
        title: [name for name in group if name not in curves and not _is_flat(runs, name)]
        for title, group in _MAIN.items()
    }
    groups["Learning"] = [*curves, *groups["Learning"]]
    kept = {title: [name for name in group if name in names] for title, group in groups.items()}
    return {title: group for title, group in kept.items() if group}


def _is_flat(runs: Sequence[RunFiles], name: str) -> bool:
    """Whether a metric has one value at every step that says nothing, as a share that is always 0."""
    values = [value for run in runs for _, value in series(run.rows, name)]
    return len(values) > 1 and len(set(values)) == 1 and not (name.endswith("_fraction") and values[0])


_MOST_WARNINGS = 60
_MOST_HEADLINES = 4


def _is_calm(run: RunFiles, spreads: Sequence[StepSpread]) -> bool:
    """Whether one start did it all, and nothing failed so far."""
    ended_well = len(run.starts) <= 1 and all(start.exit_code in (None, 0) for start in run.starts)
    return ended_well and not failures(spreads)


def _shown(value: object) -> object:
    """Every text on its way into the page, before it is escaped; what the template made itself stays."""
    return value if isinstance(value, Markup) else visible(str(value))


class _Curves:
    """Charts by metric, each drawn once."""

    def __init__(self, runs: Sequence[RunFiles], labels: Sequence[str]):
        self._runs, self._labels = runs, labels
        self._drawn: dict[str, Chart] = {}

    @property
    def num_drawn(self) -> int:
        return len(self._drawn)

    def charts(self, names: Iterable[str]) -> list[Chart]:
        return [chart for name in names if (chart := self._chart(name)) is not None]

    def _chart(self, name: str) -> Chart | None:
        """None where no step has a number for it."""
        if name not in self._drawn:
            curves = zip(self._labels, COLORS, self._runs, strict=False)
            lines = [Line(label, color, series(run.rows, name)) for label, color, run in curves]
            lines = [line for line in lines if line.points]
            if not lines:
                return None
            limit = limit_of(name, [run.config for run in self._runs], [v for line in lines for _, v in line.points])
            title = title_of(name) if limit is None else f"{title_of(name)}, limit {limit:g}"
            self._drawn[name] = Chart(title, line_chart(lines, name, limit))
        return self._drawn[name]


def _spread_charts(spreads: Sequence[StepSpread]) -> list[Chart]:
    """Charts of rewards and lengths: over the steps, in the first and in the last. Of rewards that are one of two
    values, the share of the larger."""
    charts: list[Chart] = []
    of: dict[str, Callable[[StepSpread], Quantiles | None]] = {
        "Rewards": lambda spread: spread.rewards,
        "Response lengths": lambda spread: spread.response_lengths,
    }
    for what, field in of.items():
        drawn = [(each.step, spread) for each in spreads if each.kind == "train" and (spread := field(each))]
        if shares := share_of_larger(drawn):
            larger, points = shares
            charts.append(Chart(f"{what} of {number_text(larger)} (share)", line_chart([Line("", COLORS[0], points)])))
        elif drawn:
            (first, at_first), (last, at_last) = drawn[0], drawn[-1]
            charts += [
                Chart(what, spread_chart(drawn)),
                Chart(f"{what} in step {first}", histogram(at_first)),
                Chart(f"{what} in step {last}", histogram(at_last)),
            ]
    return charts


def _labels(runs: Sequence[RunFiles]) -> list[str]:
    """The names of the runs; with the directory where two have the same."""
    names = [run.name for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({run.directory})" for name, run in zip(names, runs, strict=True)
    ]


def _count(steps: Sequence[StepSamples]) -> int:
    return sum(len(group.samples) for step in steps for group in step.groups)


def render_rollout(record: Recorded) -> str:
    """A page of one attempt, as it stands in a report."""
    context = {
        "groups": SampleReader().groups([record]),
        "has_tokens": record.tokens is not None,
        "gap_steps": GAP_STEPS,
    }
    return environment().get_template("rollout.html.j2").render(context)


# `roll report`: what runs left on disk, as one HTML file that needs no network.


def run(argv: Sequence[str]) -> list[str]:
    """Raises ConfigError for words that are no call, and for a directory without a run."""
    options = argument_parser().parse_args(argv)
    runs = [run for path in options.runs for run in runs_at(Path(path))]
    if len(runs) > MOST_RUNS:
        raise ConfigError(f"{len(runs)} runs: at most {MOST_RUNS} can be told apart in one report.")
    out = Path(options.out)
    run_files = [read_run(directory) for directory in runs]
    page = render(run_files, options.steps)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, page.html)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror}") from error
    size = out.stat().st_size / 1e6
    return [f"{out}: {page.num_charts} curves, {page.num_samples} sample rollouts, {size:.1f} MB"]


def write_report(directory: Path, out: Path) -> Path:
    """The report of one run, by its output_dir or its logging_dir."""
    write_whole(out, render([read_run(directory)], argument_parser().get_default("steps")).html)
    return out
