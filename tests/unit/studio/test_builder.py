"""The builder's logic: fields from the schema, keys in a text, plans, imports, runs that are started."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.report.run_files import find_run
from roll.run.spec import PIPELINES
from roll.studio.form import MOST_USED, form_of
from roll.studio.launch import directory_for, place_of, roll_command
from roll.studio.plans import make_plan, named_keys, problems_of
from roll.studio.yaml_edit import (
    NO_DRAFT,
    Draft,
    broken_line,
    draft_of,
    examples,
    get,
    imported,
    kind_of_text,
    line_of,
    set_key,
    tree_of,
    value_of,
)  # fmt: skip
from roll.utils.secrets import MASK
from tests.layout.source import REPOSITORY
from tests.unit.studio.test_runs import make_run

TEXT = """# a comment
a: 1   # one
b:
  c: [1, 2]
  # of d
  d: |
    text
    more

e: {f: 1}
g:
  - x
  - y
last:
"""


def test_every_field_that_is_shown_first_is_a_key_of_some_kind() -> None:
    known = {field.key for kind in PIPELINES for field in form_of(kind).most_used()}
    assert set(MOST_USED) - known == set()


def test_fields_say_how_they_are_filled_in() -> None:
    form = form_of("rlvr")
    kinds = {key: form.field(tuple(key.split("."))) for key in ("max_steps", "verify_checkpoint", "pretrain")}
    assert {key: field and field.kind for key, field in kinds.items()} == {
        "max_steps": "number", "verify_checkpoint": "switch", "pretrain": "text",
    }  # fmt: skip
    rows = form.field(("actor_train", "training_args", "learning_rate"))
    assert rows is not None and rows.kind == "number" and rows.section == "actor_train.training_args" and rows.help
    assert form.field(("actor_train",)) is None and form.field(("nobody", "knows")) is None


def test_a_search_finds_keys_by_name_first_also_of_entries_that_the_yaml_has() -> None:
    found = [field.key for field in form_of("rlvr").search("world size", {"rewards": {"sort": {}}})]
    assert "rewards.sort.world_size" in found
    assert form_of("rlvr").search("gradients norm", {})[0].key == "max_grad_norm"
    assert form_of("rlvr").search("", {}) == [] == form_of("rlvr").search("nosuchword", {})


@pytest.mark.parametrize(
    "query, first",
    [
        ("kl", ["use_kl_loss", "kl_loss_coef", "opd_kl_coef"]),
        ("algorithm", ["algorithm"]),
        ("learning rate", ["actor_train.training_args.learning_rate"]),
        ("actor_train.max_grad_norm", ["actor_train.max_grad_norm"]),
        ("temperature", ["actor_infer.generating_args.temperature"]),
    ],
)
def test_a_search_begins_with_the_key_of_that_name_and_with_what_is_used_most(query: str, first: list[str]) -> None:
    keys = [field.key for field in form_of("rlvr").search(query, {})]
    assert [key for key in keys if key in first] == first and keys[0] == first[0]


def test_keys_of_tables_offer_the_names_that_fit() -> None:
    form = form_of("rlvr")

    def choices(key: str) -> tuple[str, ...]:
        field = form.field(tuple(key.split(".")))
        assert field is not None
        return field.choices

    assert {"grpo", "dapo"} <= {*choices("algorithm")} and "dpo" not in choices("algorithm")
    assert "dpo" in form_of("dpo").most_used()[2].choices
    assert "fsdp2_train" in choices("actor_train.strategy_args.strategy_name")
    assert "vllm" not in choices("actor_train.strategy_args.strategy_name")
    assert "vllm" in choices("actor_infer.strategy_args.strategy_name")
    assert "exact_match" in choices("rewards.sort.reward") and "gae" in choices("adv_estimator")
    kinds = {key: form.field(tuple(key.split("."))) for key in ("algorithm", "adv_estimator")}
    assert {key: field and field.kind for key, field in kinds.items()} == {
        "algorithm": "choice", "adv_estimator": "text",
    }, "code of one's own may be an estimator"  # fmt: skip


def test_what_a_yaml_sets_is_found_down_to_the_entries_of_mappings() -> None:
    tree = {"seed": 1, "helper": 2, "rewards": {"sort": {"reward": "exact_match"}}}
    assert [field.key for field in form_of("rlvr").set_in(tree)] == ["seed", "rewards.sort.reward"]


@pytest.mark.parametrize(
    "path, value, old, new",
    [
        (("a",), 5, "a: 1   # one", "a: 5   # one"),
        (("a",), "x: y", "a: 1 ", "a: 'x: y' "),
        (("b", "c"), [3], "c: [1, 2]", "c: [3]"),
        (("b", "d"), "z", "d: |\n    text\n    more\n", "d: z\n"),
        (("b", "h"), True, "    more\n", "    more\n  h: true\n"),
        (("e", "f"), 2, "{f: 1}", "{f: 2}"),
        (("e", "h", "i"), 2, "{f: 1}", "{f: 1, h: {i: 2}}"),
        (("g",), ["z"], "g:\n  - x\n  - y\n", "g: [z]\n"),
        (("last", "k"), 1.5, "last:\n", "last:\n  k: 1.5\n"),
        (("new", "k"), 1, "last:\n", "last:\nnew:\n  k: 1\n"),
        (("a",), None, "a: 1   # one\n", ""),
        (("b", "d"), None, "  d: |\n    text\n    more\n", ""),
        (("nothing", "here"), None, "", ""),
    ],
)
def test_one_key_changes_and_the_rest_of_the_text_stays(
    path: tuple[str, ...], value: object, old: str, new: str
) -> None:
    assert set_key(TEXT, path, value) == (TEXT.replace(old, new, 1) if old else TEXT)


def test_what_the_form_cannot_change_is_said() -> None:
    with pytest.raises(ConfigError, match="a has a value and no keys below it"):
        set_key(TEXT, ("a", "x"), 1)
    for text in ("a: [", "- 1", "text"):
        with pytest.raises(ConfigError):
            tree_of(text)
    with pytest.raises(ConfigError, match="no value"):
        value_of("[1")
    assert tree_of("") == {} and value_of("[0, 1]") == [0, 1]


def test_an_example_keeps_its_comments_when_a_key_changes() -> None:
    draft = next(draft for draft in examples() if draft.name == "tiny-sort/tiny_sort")
    changed = set_key(draft.text, ("actor_train", "training_args", "learning_rate"), 0.25)
    assert changed == draft.text.replace("learning_rate: 1.0e-3", "learning_rate: 0.25")
    assert get(tree_of(changed), ("actor_train", "device_mapping")) == [0]


def test_every_kind_has_an_example() -> None:
    drafts = examples()
    assert {draft.kind for draft in drafts} == {*PIPELINES, "stages"}
    assert all(kind_of_text(draft.text) == draft.kind for draft in drafts if draft.kind != "stages")


def test_a_configuration_of_verl_is_imported_with_its_report() -> None:
    content = (REPOSITORY / "tests" / "importers" / "verl_dapo.sh").read_bytes()
    text, report = imported("../verl_dapo.sh", content)
    assert kind_of_text(text) == "rlvr" and report.startswith("# verl_dapo.sh as a YAML of roll")
    with pytest.raises(ConfigError):
        imported("x.yaml", b"\xff\x00")


def tiny_sort(tmp_path: Path, model: Path) -> str:
    """The YAML of the example with data and a model that are there."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "31", "ground_truth": "13", "tag": "sort"}\n' * 64)
    text = next(draft.text for draft in examples() if draft.name == "tiny-sort/tiny_sort")
    text = set_key(set_key(text, ("tiny_sort_dir",), str(tmp_path)), ("pretrain",), str(model))
    for role in ("actor_train", "validation"):
        text = set_key(text, (role, "data_args", "file_name"), str(rows))
    return text


def test_a_plan_tells_problems_or_what_would_run(tiny_model_dir: Path, tmp_path: Path) -> None:
    text = tiny_sort(tmp_path, tiny_model_dir)
    good = asyncio.run(make_plan(text, "new"))
    assert good.is_good and good.problems == () and "deepspeed_train" in good.text
    bad = asyncio.run(make_plan(set_key(text, ("rollout_batch_size",), -1), "new"))
    assert not bad.is_good and any("rollout_batch_size" in problem for problem in bad.problems)
    lost = asyncio.run(make_plan(set_key(text, ("pretrain",), str(tmp_path / "model")), "new"))
    assert not lost.is_good and any("no model directory" in problem for problem in lost.problems)
    elsewhere = set_key(text, ("pretrain",), str(tmp_path / "model"))
    there = asyncio.run(make_plan(elsewhere, "new", elsewhere=True))
    assert there.is_good and "no model directory" in there.text, "the other machine may have it"


def test_a_run_is_a_draft_with_what_it_was_given_in_its_own_place(tmp_path: Path) -> None:
    settings = {"exp_name": "mine", "algorithm": "sft", "seed": 3, "output_dir": "/x", "api_key": MASK}
    settings["rewards"] = [{"top": 1, "token": f"a {MASK}"}]
    run = make_run(tmp_path / "run", settings=settings, folders=["/code"], directory=str(tmp_path))
    draft = draft_of(find_run(run), "run mine")
    assert draft is not None and (draft.name, draft.kind) == ("run mine", "sft")
    assert tree_of(draft.text) == {"exp_name": "mine", "algorithm": "sft", "seed": 3, "rewards": [{"top": 1}]}
    head, _, _ = draft.text.partition("\n")
    assert head == "# Secrets are not recorded. Left out here, set them again: api_key, rewards.token"
    assert place_of(draft)[0] == str(tmp_path) and "/code" in roll_command(draft, "plan")
    assert place_of(NO_DRAFT)[0] is None
    assert draft_of(find_run(make_run(tmp_path / "earlier")), "") is None, "no settings are recorded"


def test_a_plan_leaves_nothing_behind_for_the_next(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code of the user's runs in the process of its plan alone: not in this one, and no second plan finds it."""
    monkeypatch.chdir(tmp_path)
    text, seen = tiny_sort(tmp_path, tiny_model_dir), tmp_path / "seen"
    module = tmp_path / "estimator_of_mine.py"
    for version in ("one", "two"):
        lines = (
            "import os",
            f"open({str(seen)!r}, 'a').write(f\"{version} {{os.getpid()}} {{os.environ.get('PLANNED')}}\\n\")",
            "os.environ['PLANNED'] = '1'",
            "def credit(groups): return groups",
        )
        module.write_text("\n".join(lines))
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        asyncio.run(make_plan(set_key(text, ("adv_estimator",), "estimator_of_mine:credit"), "new"))
    first, second = (line.split() for line in dict.fromkeys(seen.read_text().splitlines()))
    assert (first[0], first[2], second[0], second[2]) == ("one", "None", "two", "None")
    assert len({first[1], second[1], str(os.getpid())}) == 3
    assert "PLANNED" not in os.environ and "estimator_of_mine" not in sys.modules


def test_code_of_a_draft_is_found_after_all_that_is_installed(tmp_path: Path) -> None:
    """Nor does it run by itself, as a sitecustomize on PYTHONPATH does."""
    (tmp_path / "roll").mkdir()
    for place in ("roll/__init__.py", "sitecustomize.py", "yaml.py", "json.py"):
        (tmp_path / place).write_text(f"raise SystemExit('a foreign {place} ran')\n")
    draft = Draft("", "sft", "", str(tmp_path), (str(tmp_path),))
    (problem,) = asyncio.run(make_plan("a: [", "new", draft=draft)).problems
    assert "foreign" not in problem and "new.yaml" in problem


@pytest.mark.parametrize(
    "problem, keys",
    [
        ("max_steps: -3 must be greater than or equal to 1.", ["max_steps"]),
        ("actor_train.device_mapping uses devices 8..15, but num_nodes is 1.", ["actor_train.device_mapping"]),
        ("The product of rollout_batch_size and num_return_sequences_in_group is odd.",
         ["rollout_batch_size", "num_return_sequences_in_group"]),
        ("rewards.{sort, math}.reward: no", ["rewards.sort.reward", "rewards.math.reward"]),
        ("seed and mode are words here.", ["seed"]),
        ("This is no YAML: while parsing", []),
        ("nobody_knows this_word", []),
    ],
)  # fmt: skip
def test_a_problem_names_its_keys(problem: str, keys: list[str]) -> None:
    form = form_of("rlvr")
    paths = named_keys(problem, lambda path: form.field(path) is not None)
    assert [".".join(path) for path in paths] == keys


def test_lines_of_keys_and_of_a_text_that_is_no_yaml() -> None:
    places = {("a",): 2, ("b", "d"): 6, ("b", "nothing"): 3, ("e", "f"): 10, ("nobody",): None, ("g", "x"): 11}
    assert {path: line_of(TEXT, path) for path in places} == places
    assert line_of("a: [", ("a",)) is None and line_of("", ("a",)) is None
    assert broken_line("a: 1\nb: [\nc: 2\n") == 3 and broken_line(TEXT) is None


def test_a_run_gets_a_new_directory_below_the_folder(tmp_path: Path) -> None:
    assert directory_for(tmp_path, "mine-1") == tmp_path / "mine-1"
    for name in ("", "..", ".", "a/b", "../a", "-x", "a\n", "\u202e"):
        with pytest.raises(ConfigError, match="A name of a run"):
            directory_for(tmp_path, name)
    (tmp_path / "taken").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        directory_for(tmp_path, "taken")


def test_a_problem_of_a_plan_keeps_all_its_lines() -> None:
    assert problems_of("error:\n  - a: one\n    more of it\n  - b: two\n") == ("a: one\n    more of it", "b: two")
    assert problems_of("Traceback\n") == ("Traceback",) and problems_of("") == ()
