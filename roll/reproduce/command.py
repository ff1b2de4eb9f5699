"""`roll reproduce`: lists recipes, runs one, and compares its curve with the one that was measured."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from roll.configs.load.yaml_file import read_yaml
from roll.errors import ConfigError
from roll.report.run_files import read_run
from roll.reproduce.band import measured, outside
from roll.reproduce.options import argument_parser
from roll.reproduce.page import PAGE, PICTURE, curve, page, pages_of
from roll.reproduce.recipes import BAND_FILE, RUN_FILE, Recipe, find_recipe, model_of, recipes
from roll.utils.files import write_whole
from roll.utils.logging import say
from roll.utils.supervision import end_with_parent
from roll.utils.text import table


def run(argv: Sequence[str]) -> int:
    """0: listed, recorded, or inside the band. 1: outside. Otherwise the exit code of the run that failed."""
    options, overrides = argument_parser().parse_known_args(argv)
    if unknown := [word for word in overrides if word.startswith("-") or "=" not in word]:
        raise ConfigError(f"{', '.join(unknown)}: unknown option; see roll reproduce --help.")
    if not options.name:
        say("\n".join(listing(recipes())))
        return 0
    for name in ("seeds", "steps"):
        if (count := getattr(options, name)) is not None and count < 1:
            raise ConfigError(f"--{name}: {count} must be 1 or more.")
    recipe = find_recipe(options.name)
    folder = (options.out or Path("output/reproduce", recipe.name)).absolute()
    model, source = model_of(recipe.about, options.model)
    say(f"Model: {source}, licence {recipe.about.licence}" if options.model is None else f"Model: {source}")
    steps = [f"max_steps={options.steps}"] if options.steps else []
    place = [f"recipe_dir={recipe.folder}"] if "recipe_dir" in read_yaml(recipe.folder / RUN_FILE) else []
    words = [str(recipe.folder / RUN_FILE), f"pretrain={model}", *place, *steps, *overrides]
    outputs = [folder / f"seed-{seed}" for seed in range(1, options.seeds + 1)]
    for seed, output in enumerate(outputs, 1):
        say(f"Seed {seed} of {options.seeds}: roll run {' '.join(words)}")
        command = [sys.executable, "-m", "roll", "run", *words, f"seed={seed}", f"output_dir={output}"]
        if code := _code(command):
            say(f"Seed {seed} ended early with exit code {code}, so nothing was compared. Its files: {output}")
            return code
    return _ended(recipe, folder, outputs, source, options.record)


def _code(command: Sequence[str]) -> int:
    """Exit code of a run, which ends with this process. Ctrl-C reaches both, and SIGTERM is handed on: the run saves,
    and this one waits."""
    run = subprocess.Popen(command, preexec_fn=partial(end_with_parent, signal.SIGTERM))
    former = signal.signal(signal.SIGTERM, lambda *_: run.send_signal(signal.SIGTERM))
    try:
        while True:
            with suppress(KeyboardInterrupt):
                code = run.wait()
                return code if code >= 0 else 128 - code
    finally:
        signal.signal(signal.SIGTERM, former)


def _ended(recipe: Recipe, folder: Path, outputs: Sequence[Path], source: str, is_record: bool) -> int:
    runs = [read_run(max(output.glob("[0-9]*-*"), default=output)) for output in outputs]  # the last stage
    all_seeds = measured(runs, source)
    if is_record:
        write_whole(recipe.folder / BAND_FILE, all_seeds.as_json())
        for path, text in pages_of(Recipe(recipe.folder, recipe.about, all_seeds)):
            write_whole(path, text)
        say(f"Recorded in {recipe.folder}. In a checkout, python -m tools.make_results renews docs/results.md.")
        return 0
    band = recipe.band
    problems = [
        f"seed {number}, {problem}"
        for number, each in enumerate(runs, 1)
        for problem in (outside(band, measured([each], source)) if band else ())
    ]
    if band is None:
        verdict = "The recipe has no band yet; --record makes one of these runs."
    elif problems:
        verdict = f"Outside the band: {problems[0]}" + (f", and {len(problems) - 1} more" if problems[1:] else "") + "."
        if band.model != source:
            verdict += f" The band was measured with {band.model}, these runs with {source}."
    else:
        verdict = f"Inside the band of {band.of_seeds}."
    write_whole(folder / PICTURE, curve(band or all_seeds, all_seeds if band else None))
    write_whole(folder / PAGE, page(recipe, all_seeds, [verdict, *(f"- {problem}" for problem in problems)]))
    say(f"{verdict}\nPage: {folder / PAGE}")
    return 1 if problems else 0


def listing(known: Sequence[Recipe]) -> Iterator[str]:
    """Name, what it shows, device, minutes, and what is known of each recipe."""
    lines = table((each.name, each.about.title, each.about.device, _minutes(each), _known(each)) for each in known)
    yield from [*lines, "", "roll reproduce NAME runs one. Minutes: a seed, on two CPU cores or one GPU; ~: a guess."]


def _minutes(recipe: Recipe) -> str:
    return f"{'~' if recipe.band is None else ''}{recipe.about.minutes} min"


def _known(recipe: Recipe) -> str:
    if recipe.band is None:
        return "never run"
    fails = "fails, as it should; " if recipe.about.kind == "fails" else ""
    return f"{fails}measured {recipe.band.date}, {recipe.band.of_seeds}"
