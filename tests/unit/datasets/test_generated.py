"""Rows of reasoning-gym's tasks: which they are, that splits share no question, what is refused. The reward on them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets import generated
from roll.datasets.generated import rows_file, task_rows
from roll.datasets.sources import all_rows, data_sources, lacking_packages
from roll.errors import ConfigError
from roll.rewards.base import RewardInput, RewardResult
from roll.run.start.data_files import made_rows

AT = "actor_train.data_args"
TASKS = ("chain_sum", "spell_backward", "letter_counting", "number_sorting", "gsm_symbolic", "countdown")


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture
def gym() -> Any:
    return pytest.importorskip("reasoning_gym", reason="the tasks are those of the package reasoning-gym")


def args(*tasks: str, split: str | None = None, **generator: Any) -> DataArgs:
    return DataArgs(file_name=tuple(f"reasoning_gym:{task}" for task in tasks), split=split, generator=generator)


def rows(task: str, split: str = "train", seed: int = 1, **settings: Any) -> list[Mapping[str, Any]]:
    """The rows of a task, made in this process."""
    return list(task_rows(task, split, {"seed": seed, **settings}))


def score(row: Mapping[str, Any], response: str, **reward_args: Any) -> RewardResult:
    from roll.rewards.reasoning_gym import ReasoningGym

    return ReasoningGym(**reward_args)(RewardInput("", response, payload=row))


@pytest.mark.parametrize("task", TASKS)
def test_the_answer_of_a_row_is_right_by_the_score_of_its_task(gym: Any, task: str) -> None:
    made = rows(task, size=60)  # some later rows of gsm_symbolic have fractions in their metadata
    assert len(made) == 60 and json.loads(json.dumps(made)) == made
    for row in made[:3]:
        assert row["tag"] == task
        assert score(row, f"<think>\nno</think> <answer>{row['ground_truth']}</answer>").score == 1
        assert score(row, f"so\n{row['ground_truth']}\n").score == 1
        assert score(row, "<answer>?</answer>").score < 0.5


def test_tasks_of_a_list_share_settings_and_have_their_own_and_a_plan_counts_their_rows(gym: Any) -> None:
    given = args("chain_sum", "countdown", size=7, countdown={"min_numbers": 3, "max_numbers": 3, "size": 2})
    sources, problems = data_sources(given, AT)
    made = [row.values for row in all_rows(sources)]
    assert problems == [] and [row["tag"] for row in made] == ["chain_sum"] * 7 + ["countdown"] * 2
    assert [len(row["metadata"]["numbers"]) for row in made[7:]] == [3, 3]
    assert made[0]["generator"] == {"task": "chain_sum"} and made[7]["generator"]["max_numbers"] == 3
    counts = [text.partition(" in ")[0] for text in made_rows({AT: given})]
    assert counts == ["7", "2"]


def test_an_answer_that_the_task_cannot_parse_is_wrong_and_counted(gym: Any) -> None:
    (row,) = rows("prime_factorization", size=1)
    assert score(row, "no factors").metrics == {"answer_found": 0, "unreadable": 1}
    assert score(row, str(row["ground_truth"])).metrics["unreadable"] == 0


def test_training_and_validation_share_no_question_whatever_their_seeds(gym: Any) -> None:
    settings: Any = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    learnt = {row["prompt"] for row in rows("chain_sum", size=200, **settings)}
    for seed in (1, 2):  # 200 questions in all; seed 2 has those of seed 1, in other places
        asked = [row["prompt"] for row in rows("chain_sum", "test", seed, size=20, **settings)]
        assert len(set(asked)) == len(asked) == 20
        assert not learnt & set(asked)
    assert 100 < len(learnt) < 180  # no question twice, so there are fewer than asked for


@pytest.mark.slow
def test_rows_depend_on_settings_alone(gym: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = args("ransom_note", size=5)  # a task that iterates over a set of letters
    files = []
    for hash_seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
        monkeypatch.setenv("HOME", str(tmp_path / hash_seed))
        files.append(rows_file("ransom_note", given, AT))
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].name == files[1].name
    other = rows_file("ransom_note", given, "validation.data_args")
    assert other.name.startswith("ransom_note-test-")


@pytest.mark.parametrize(
    ("task", "settings", "says"),
    [
        ("chain_sums", {}, "there is no task chain_sums. Did you mean chain_sum?"),
        ("chain_sum", {"max_term": 2}, "there is no setting max_term. Did you mean max_terms?"),
        ("arc_agi", {}, "scores Python objects that no file of rows can hold"),
    ],
)
def test_what_cannot_be_made_is_refused(gym: Any, task: str, settings: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        rows(task, size=1, **settings)


def test_a_missing_package_is_named_with_the_key_and_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise generated.PackageNotFoundError(name)

    monkeypatch.setattr(generated, "version", absent)
    given = args("chain_sum")
    needs = (
        f"{AT}.file_name: reasoning_gym:chain_sum cannot be made: it needs the package reasoning-gym. "
        "Install it: pip install reasoning-gym==0.1.25"
    )
    assert list(lacking_packages(given, AT)) == [needs]
    assert data_sources(given, AT) == ([], [needs])
    assert data_sources(given, AT, reach=False) == ([], [])
