"""The strategy of docs/adding_a_strategy.md, followed from a folder outside the repository: a dry run, what is refused,
and a whole run."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from roll.commands import run as cli
from tests.helpers.cases import cases
from tests.helpers.pages import importable, snippets, write_files
from tests.helpers.runs import Run

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny-sort" / "tiny_sort.yaml"
KEY = "actor_train.strategy_args.strategy_name"
SHORT = (
    "max_steps=3", "eval_steps=0", "save_steps=3", "rollout_batch_size=8",
    "actor_train.training_args.gradient_accumulation_steps=1", "actor_train.training_args.warmup_steps=0",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The files of the page, and the demo's YAML with the strategy of the page."""
    folder = tmp_path / "mine"
    folder.mkdir()
    assert write_files(snippets("adding_a_strategy.md", "python"), folder) == ["plain", "plain_torch"]
    (own,) = snippets("adding_a_strategy.md", "yaml")
    built_in = "  strategy_args:\n    strategy_name: deepspeed_train\n    strategy_config: ${deepspeed_zero}\n"
    text = EXAMPLE.read_text(encoding="utf-8")
    assert built_in in text
    (folder / "mine.yaml").write_text(text.replace(built_in, own.removeprefix("actor_train:\n")), encoding="utf-8")
    with importable(folder):
        yield folder


def dry_run(folder: Path, *overrides: str) -> int:
    return cli.main("rlvr", ["--config_path", str(folder), "--config_name", "mine", "--dry_run", *SHORT, *overrides])


def test_a_dry_run_shows_the_strategy_and_asks_its_spec(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run(folder, "--elsewhere") == 0
    shown = capsys.readouterr().out
    assert re.search(r"actor_train +plain:SPEC +1 worker +device 0", shown)
    settings = "actor_train.strategy_args.strategy_config"
    assert dry_run(folder, f"{settings}.threads=0", "actor_train.model_args.dtype=bf16") == 2
    said = capsys.readouterr().err
    assert f"{settings}.threads: 0 must be greater than or equal to 1." in said
    assert "actor_train.model_args.dtype: plain has no master weights, so bf16 cannot train. Use fp32." in said
    assert dry_run(folder, f"{settings}.thread=2") == 2
    assert f"{settings}.thread: unknown key (value 2). Did you mean threads?" in capsys.readouterr().err


@cases("name, message")
def test_what_is_no_spec_or_cannot_serve_is_refused_with_the_key(
    name: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "wrong.py").write_text(
        "from dataclasses import replace\n"
        "from plain import SPEC\n"
        "def raises(choice):\n"
        "    return {}['threads']\n"
        "def gives_none(choice): pass\n"
        "def gives_text(choice): yield 'text'\n"
        "CLASS = replace(SPEC, name='class', settings='plain:problems')\n"
        "RAISES = replace(SPEC, name='raises', problems='wrong:raises')\n"
        "GIVES_NONE = replace(SPEC, name='gives_none', problems='wrong:gives_none')\n"
        "GIVES_TEXT = replace(SPEC, name='gives_text', problems='wrong:gives_text')\n"
        "SIZES = replace(SPEC, name='sizes', sizes='wrong:gives_none')\n"
        "NOTHING = replace(SPEC, name='nothing', classes={})\n"
        "HOOKS = replace(SPEC, name='hooks', problems='plain:no_such')\n"
        "SCORER = replace(SPEC, name='scorer', classes={'score': 'plain_torch:PlainTrainStrategy'})\n"
        "VALUES = replace(SPEC, name='values', heads=('value',))\n"
    )
    assert dry_run(folder, f"{KEY}={name}") == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "classes[train]: plain_torch:Nowhere: plain_torch has no Nowhere"),
        ("function", "classes[train]: plain:problems is not a class that extends TrainStrategy"),
        ("unfinished", "classes[train]: wrong:Unfinished does not have all_reduce_sum"),
    ],
)
def test_a_real_run_refuses_a_class_that_is_not_there_or_not_whole_before_anything_starts(
    name: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = {"nowhere": "plain_torch:Nowhere", "function": "plain:problems", "unfinished": "wrong:Unfinished"}[name]
    (folder / "wrong.py").write_text(
        "from dataclasses import replace\n"
        "from plain import SPEC\n"
        "from roll.distributed.strategy.base import TrainStrategy\n"
        "class Unfinished(TrainStrategy): pass\n"
        f"WRONG = replace(SPEC, name='{name}', classes={{'train': '{path}'}})\n"
    )
    arguments = ["--config_path", str(folder), "--config_name", "mine", *SHORT, f"{KEY}=wrong:WRONG"]
    assert cli.main("rlvr", arguments) == 2
    assert f"{KEY}: {name}: {message}" in capsys.readouterr().err


@pytest.mark.slow
def test_three_steps_are_trained_and_saved_and_the_engine_gets_the_weights(
    folder: Path, sort_data: Path, start_run: Callable[..., Run]
) -> None:
    run = start_run(sort_data, "mine", *SHORT, example=folder).finished()
    norms = [run.metrics[step]["actor/grad_norm"] for step in (1, 2, 3)]
    assert all(math.isfinite(norm) for norm in norms) and max(norms) > 0
    gaps = [run.metrics[step]["train_infer/log_prob_diff_max"] for step in (1, 2, 3)]
    assert max(gaps) < 1e-4  # the engine has the weights that were trained
    (saved,) = (run.output_dir / "checkpoints").glob("*/actor_train/state.pt")
    assert (saved.parents[1] / "hf_model" / "config.json").is_file()
