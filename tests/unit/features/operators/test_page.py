"""The page on data shows operators that work."""

from pathlib import Path

import yaml

from roll.configs.sections.data import DataArgs
from roll.configs.sections.model import ModelArgs
from roll.configs.sections.operators import QualityArgs
from roll.datasets.chosen_rows import Places
from roll.features.operators.bounds import quality
from roll.features.operators.checks import operator_problems, user_function_problems
from roll.features.operators.row import Context, run_chain
from tests.helpers.pages import DOCS, importable, snippets, write_files
from tests.unit.features.operators.rows import context, rows


def test_the_yaml_has_no_problems_and_the_functions_choose_and_score(tmp_path: Path) -> None:
    page = (DOCS / "data.md").read_text(encoding="utf-8")
    shown = page.split("## Operators\n")[1].split("\n\n`operators`")[0]
    args = DataArgs.model_validate(yaml.safe_load(shown)["actor_train"]["data_args"])
    places = {"actor_train.data_args": args, "validation.data_args": DataArgs()}
    assert list(operator_problems(Places(places, "actor_train.data_args", "rlvr", ModelArgs()))) == []
    write_files(snippets("data.md", "python"), tmp_path)
    with importable(tmp_path):
        assert list(user_function_problems(places)) == []
        own = [entry for entry in args.operators if entry.name == "my_operators:no_links"]
        some = rows("see https://a.b", "2+2")
        chosen = run_chain(some, own, "x", lambda at, op: Context(at, op, context().count_tokens, dict))
        assert chosen.rows == (1,) and chosen.steps[0].why == "1 has links"
        scores = quality(some, QualityArgs(scorer="my_operators:length_score"), context())
        assert scores == [{"quality": 1 / 15}, {"quality": 1 / 3}]
