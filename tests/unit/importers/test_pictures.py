"""What becomes of keys of pictures: RLVR runs of families that are shown pictures read them, all others refuse them."""

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import Imported, read
from roll.importers.verl.pictures import is_shown
from tests.helpers.cases import cases
from tests.unit.importers.test_import import entry, imported
from tests.unit.importers.test_trinity_meaning import GUIDE, TASKS
from tests.unit.importers.test_verl_meaning import GRPO, MODEL, ROLLOUT, at

SEES = (*GRPO[:2], GRPO[3], f"{MODEL}.path=org/Qwen2.5-VL-7B-Instruct", "data.val_files=v.parquet")
SIZES = "data.mm_processor_kwargs"
CONFIG = "actor_infer.strategy_args.strategy_config"


def of(*words: str) -> Imported:
    return imported_from(read(None, words), "verl")


def trinity(*words: str) -> Imported:
    return imported(f"{GUIDE}.yaml", "model.model_path=org/Qwen2.5-VL-3B-Instruct", *words)


def test_a_script_of_geometry3k_is_the_run_that_it_means() -> None:
    found = imported("verl_geometry3k.sh")
    assert found.is_as_meant, found.changes
    for role in ("actor_train", "validation"):
        data = found.tree[role]["data_args"]
        assert (data["image_key"], data["image_min_pixels"], data["image_max_pixels"]) == ("images", 3136, 602112)
        assert (data["truncation"], data["ground_truth"]) == ("drop", "reward_model.ground_truth")
    assert at(found, f"{CONFIG}.limit_mm_per_prompt") == {"image": 5}
    assert at(found, f"{CONFIG}.disable_mm_preprocessor_cache") is True
    args = at(found, "actor_train.model_args")
    assert (args["freeze_module_prefix"], args["lora_target"]) == ("vision_model,projector", "all-linear")
    assert entry(found, f"{MODEL}.exclude_modules") == (
        "asks for nothing",
        "adapters are of the language model alone",
    )


@cases("name, shown")
def test_families_that_are_shown_pictures_are_known_by_name(name: str | None, shown: bool) -> None:
    assert is_shown(name) is shown


def test_another_family_is_refused_in_the_words_of_a_run() -> None:
    path = f"{MODEL}.path=OpenGVLab/InternVL3-8B"
    sentence = "those that are shown pictures are qwen2_vl, qwen2_5_vl, qwen3_vl"
    for words in ((), ("data.image_key=images",), (f"{SIZES}.max_pixels=9", "data.image_key=images")):
        changes = of(*GRPO, path, *words).changes
        assert changes and all(sentence in change for change in changes), changes


def test_a_model_whose_name_says_nothing_reads_the_column() -> None:
    found = of(*GRPO, "data.image_key=pics")
    assert found.is_as_meant and at(found, "actor_train.data_args.image_key") == "pics"
    assert "validation" not in found.tree


def test_a_whole_configuration_leaves_the_column_to_its_default() -> None:
    """A row without the named column would stop the run; verl's defaults name it for rows of text as well."""
    found = of(*SEES, "data.image_key=images", "data.video_key=videos")
    assert found.is_as_meant and "image_key" not in found.tree["actor_train"]["data_args"]
    clips = of(*SEES, "data.image_key=images", "data.video_key=clips")
    assert not clips.is_as_meant


@cases("words, key")
def test_what_is_not_read_beside_pictures_makes_another_run(words: list[str], key: str) -> None:
    found = of(*SEES, "data.image_key=images", *words)
    assert [change.partition(":")[0] for change in found.changes] == [key], found.changes


@cases("value")
def test_a_tower_without_adapters_is_what_is_here(value: str) -> None:
    assert of(*SEES, f"{MODEL}.lora_rank=8", f"{MODEL}.exclude_modules={value}").is_as_meant


@cases("words, reason")
def test_what_would_stop_the_run_at_its_first_picture_is_told_with_what_avoids_it(
    words: list[str], reason: str
) -> None:
    (change,) = of(*SEES, *words).changes
    assert reason in change
    instead = change.partition("Give ")[2].partition(" ")[0]
    assert of(*SEES, *words, instead).is_as_meant


def test_the_newer_name_of_a_limit_wins_over_the_older_one() -> None:
    kwargs = f"{ROLLOUT}.engine_kwargs.vllm.limit_mm_per_prompt"
    found = of(*SEES, f"{ROLLOUT}.limit_images=2", f"{kwargs}.image=3", f"{kwargs}.video=0")
    assert at(found, f"{CONFIG}.limit_mm_per_prompt") == {"image": 3, "video": 0}
    other = of(*SEES, f"{ROLLOUT}.limit_images=2", f"{ROLLOUT}.name=sglang")
    outcome, note = entry(other, f"{ROLLOUT}.limit_images")
    assert outcome == "not available" and note.startswith("sglang has no such argument")


@cases("words")
@pytest.mark.parametrize("column", [(), ("data.image_key=images",)])
def test_only_rlvr_runs_read_pictures(words: list[str], column: list[str]) -> None:
    found = of(*words, *column)
    assert found.pipeline in ("agentic", "sft")
    assert any("pictures are imported for RLVR runs alone" in change for change in found.changes), found.changes


def test_trinitys_column_is_read_with_its_workflow_for_pictures() -> None:
    words = (f"{TASKS}.default_workflow_type=simple_mm_workflow", f"{TASKS}.default_reward_fn_type=math_boxed_reward")
    sets = TASKS.replace("taskset", "eval_tasksets")
    rows = ("{path: a.parquet, format: {image_key: pics}}", "{name: b, path: b.parquet, format: {image_key: p}}")
    found = trinity(*words, f"{TASKS}.format.image_key=images", f"{sets}=[{', '.join(rows)}]")
    assert found.is_as_meant, found.changes
    assert at(found, "rewards.trinity.reward") == "math_rule"
    keys = [at(found, f"{role}.data_args.image_key") for role in ("actor_train", "validation", "eval_sets.b")]
    assert keys == ["images", "pics", "p"]


@cases("words, reason")
def test_trinitys_column_is_refused_where_no_picture_is_shown(words: list[str], reason: str) -> None:
    key = f"{TASKS}.format.image_key"
    outcome, note = entry(trinity(f"{key}=images", *words), key)
    assert outcome == "changes the run" and reason in note
