"""The page of a recipe, in Markdown, and its picture. Both are made from the recipe's files alone."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from statistics import mean
from textwrap import wrap

from roll.report.charts import COLORS
from roll.report.svg import Plot
from roll.reproduce.band import WINDOW, Band
from roll.reproduce.recipes import Recipe
from roll.utils.text import visible

PAGE, PICTURE, WIDTH = "README.md", "curve.svg", 120
RULE = """A run lies in the band if its mean reward in each five steps and its accuracy on the held-out rows do. The
reward of the band in these steps is between the mean of the lowest and the mean of the highest of its seeds. Wilson's
interval for two standard deviations widens both ends. Its trials are the prompts of these steps, since the answers to
one prompt are alike. The accuracy of the band is between the lowest and the highest of its seeds, and is widened in the
same way, with the rows as trials."""


def curve(band: Band, run: Band | None = None) -> str:
    """The picture as SVG: the band of the rewards with their mean, smoothed, and held-out accuracies as dots; beside it
    another run."""
    steps = range(1, len(band.means) + 1)
    plot = Plot((-0.5, len(band.means) + 0.5), (0, 1), width=720, height=300)
    plot.band(steps, band.lows, band.highs, COLORS[0], 0.15)
    plot.line(steps, _trailing(band.means), COLORS[0])
    plot.name(f"reward: {band.of_seeds}, and mean of {WINDOW} steps", COLORS[0])
    _held_out(plot, band, COLORS[1])
    plot.name("accuracy on held-out rows", COLORS[1])
    if run is not None:
        plot.line(range(1, len(run.means) + 1), _trailing(run.means), COLORS[2])
        _held_out(plot, run, COLORS[2])
        plot.name("this run", COLORS[2])
    return plot.svg()


def _trailing(values: Sequence[float]) -> list[float]:
    """Return the mean of each value and those before it, WINDOW of them."""
    return [mean(values[max(0, end - WINDOW) : end]) for end in range(1, len(values) + 1)]


def _held_out(plot: Plot, band: Band, color: str) -> None:
    steps = [each.step for each in band.held_out]
    plot.line(steps, [mean(each.accuracies) for each in band.held_out], color)
    for each in band.held_out:
        plot.dots([each.step] * len(each.accuracies), each.accuracies, color)


def screen(recipe: Recipe, band: Band | None, picture: str) -> Iterator[str]:
    """The lines of one screen: what the recipe shows, its picture and its figures."""
    yield from [*wrap(recipe.about.text, WIDTH), "", f"    roll reproduce {recipe.name}", ""]
    if band is None:
        yield from ["Never run.", ""]
        return
    before, after = band.held_out[0], band.held_out[-1]
    yield from [f"![Reward and held-out accuracy over {len(band.means)} steps]({picture})", ""]
    yield from _table(["held-out accuracy after step", *(str(each.step) for each in band.held_out)], _accuracies(band))
    text = (
        f"Held-out accuracy ({before.rows} answers): {mean(before.accuracies):.2f} before, "
        f"{mean(after.accuracies):.2f} after {after.step} steps, between {after.low:.2f} and {after.high:.2f}. A step "
        f"took {band.seconds_per_step:g} s: {band.tokens_per_s:g} sampled tokens/s, training included ({band.machine})."
    )
    yield from ["", *wrap(text, WIDTH), ""]


def answers(band: Band, count: int) -> list[str]:
    """A table of the first answers before and after."""
    return [*_table(["held-out prompt", "right", "before", "after"], band.answers[:count]), ""]


def page(recipe: Recipe, band: Band | None, verdict: Sequence[str] = ()) -> str:
    """The whole page. `verdict`: how a run compares with the recipe's band."""
    lines = [f"# {recipe.about.title}", "", *verdict, *([""] if verdict else []), *screen(recipe, band, PICTURE)]
    if band is not None:
        facts = {
            "seeds": ", ".join(map(str, band.seeds)), "date": band.date, "machine": band.machine, "commit": band.commit,
            "model": f"{recipe.about.model} (licence {recipe.about.licence}), from {band.model}",
            "versions": ", ".join(f"{name} {number}" for name, number in band.versions.items()),
        }  # fmt: skip
        lines += ["## Answers before and after", "", *answers(band, len(band.answers))]
        lines += ["## Where the time went", "", *_table(["phase", "all runs", "share"], band.phases), ""]
        lines += ["## What was run", "", *_table(["", ""], [*facts.items()]), "", "## The band", "", RULE]
    return "\n".join(lines).rstrip() + "\n"


def pages_of(recipe: Recipe) -> Iterator[tuple[Path, str]]:
    """The page of a recipe in its folder, with its picture if it was run: path and text of each file."""
    yield recipe.folder / PAGE, page(recipe, recipe.band)
    if recipe.band is not None:
        yield recipe.folder / PICTURE, curve(recipe.band)


def _accuracies(band: Band) -> list[list[str]]:
    return [
        [f"seed {seed}", *(f"{each.accuracies[place]:.2f}" for each in band.held_out)]
        for place, seed in enumerate(band.seeds)
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_row(head), "|".join(["", *("---" for _ in head), ""]), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    texts = (escape(visible(cell), quote=False).replace("|", "\\|").replace("\n", "<br>") for cell in cells)
    return f"| {' | '.join(texts)} |"
