"""What imports say of verl's fine-tuning: how rows weigh, and what its versions take for granted."""

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import Imported, source_keys
from roll.importers.script import find_command
from roll.importers.verl.files import Composed
from tests.helpers.cases import cases
from tests.unit.importers.test_import import entry

FSDP = "torchrun --nproc_per_node={} -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=/m"
ENGINE = "torchrun --nproc_per_node={} -m verl.trainer.sft_trainer model.path=/m"
VALIDATION = " data.val_files=/v.parquet"
SIZE = "data.train_batch_size"
SIZES = " data.train_batch_size=64 data.micro_batch_size_per_gpu=4"


def of_command(line: str, ranks: int = 4, model: str = "/m") -> Imported:
    whole = line.replace("<fsdp>", FSDP).replace("<engine>", ENGINE).replace("=/m", f"={model}")
    command = find_command(whole.format(ranks))
    return imported_from(source_keys(Composed(), (), command), "verl")


@cases("line, ranks, told")
def test_a_mean_of_means_is_told(line: str, ranks: int, told: str) -> None:
    outcome, note = entry(of_command(line, ranks), "data.train_batch_size")
    assert (outcome == "approximated") == bool(told) and told in note


@cases("line, resumes")
def test_whether_a_run_resumes_by_default_depends_on_the_version(line: str, resumes: object) -> None:
    assert of_command(line).tree["resume_from_checkpoint"] == resumes


def test_the_program_says_which_defaults_hold() -> None:
    assert of_command(FSDP + " model.path=/m").tree["sft_train"]["training_args"]["learning_rate"] == 1e-5
    assert of_command(ENGINE).tree["sft_train"]["training_args"]["learning_rate"] == 1e-3


def test_an_adapter_to_begin_with_means_lora_and_takes_its_sizes_from_its_file() -> None:
    found = of_command(ENGINE + " model.lora_adapter_path=/a model.target_modules=all-linear")
    model = found.tree["sft_train"]["model_args"]
    assert model["adapter_name_or_path"] == "/a" and model["lora_target"] == "all-linear"
    assert "lora_rank" not in model
    outcome, note = entry(found, "model.lora_adapter_path")
    assert outcome == "approximated" and "those of the adapter's own file" in note


@pytest.mark.parametrize("key, done", [("trainer.save_freq", "saves"), ("trainer.test_freq", "validates")])
def test_a_key_that_is_given_is_not_of_a_version_without_it(key: str, done: str) -> None:
    of_an_epoch = f"{done} after each epoch"
    assert of_epoch_in(of_command(FSDP + VALIDATION), of_an_epoch)
    assert not of_epoch_in(of_command(f"{FSDP}{VALIDATION} {key}=-1"), of_an_epoch)


def of_epoch_in(found: Imported, said: str) -> bool:
    return any(said in given.note for given in found.entries) or any(said in note for note in found.notes)


ANSWERS = FSDP + " data.prompt_key=question data.response_key=answer"
TURNS = " data.messages_key=messages"


@cases("line, model, template, outcome")
def test_templates_that_change_answers_are_not_used_or_told(
    line: str, model: str, template: str | None, outcome: str
) -> None:
    found = of_command(line, model=model)
    assert found.tree.get("global_template") == template
    key = "data.messages_key" if "messages" in line else "data.response_key"
    assert entry(found, key)[0] == outcome


def test_rows_that_no_micro_batch_divides_stop_verl() -> None:
    sizes = " data.train_batch_size=64 data.micro_batch_size_per_gpu=2 data.use_dynamic_bsz=False"
    outcome, note = entry(of_command(f"{ENGINE}{sizes} engine.ulysses_sequence_parallel_size=4", 12), SIZE)
    assert outcome == "approximated" and note.startswith("63 rows in every step: 63 samples per update = 1 x 21 passes")
    assert "Verl itself stops: the 21 rows of a rank are no whole micro batches of 2." in note


def test_gpus_that_a_script_counts_are_told() -> None:
    script = "N=8; if command -v nvidia-smi; then N=$(nvidia-smi -L | wc -l); fi\n"
    for words, key in ((script, "--nproc-per-node"), ("", "trainer.n_gpus_per_node")):
        command = find_command(words + ENGINE.replace("{}", "$N" if words else "$1"), gpus=4)
        found = imported_from(source_keys(Composed(), (), command), "verl")
        assert entry(found, key)[1] == "1 x 4 GPUs train." and found.unresolved == ()
        assert any("GPUs to the machine: 4 are taken" in note for note in found.notes)


@pytest.mark.parametrize(("value", "template"), [("False", "native_nonthinking"), ("True", "native"), ("none", None)])
def test_a_switch_for_rows_that_say_nothing_of_thinking_is_the_template(value: str, template: str | None) -> None:
    key = "data.enable_thinking_default"
    found = of_command(f"{ENGINE} {key}={value} +data.apply_chat_template_kwargs.enable_thinking=False")
    assert found.is_as_meant and found.tree["global_template"] == (template or "native_nonthinking")
    outcome, note = entry(found, key)
    assert (outcome == "approximated" and "column enable_thinking" in note) == (template is not None)


def test_validations_after_each_epoch_are_none_before_the_first_step() -> None:
    found = of_command(f"{ENGINE} trainer.test_freq=after_each_epoch data.val_files=v.parquet")
    assert found.tree["val_before_train"] is False and "eval_steps" not in found.tree
    assert entry(found, "trainer.test_freq")[0] == "not available"


def test_a_folder_without_its_date_is_resumed_from() -> None:
    found = imported_from(
        source_keys(Composed(), (), find_command(f"D=/o/$(date +%F)\n{ENGINE} trainer.default_local_dir=$D")), "verl"
    )
    outcome, note = entry(found, "trainer.default_local_dir")
    assert outcome == "approximated" and note.endswith("in which it finds nothing to resume")


STOPPED = " trainer.total_epochs=10 trainer.total_training_steps=100"


def test_steps_of_the_older_program_end_a_run_within_its_schedule() -> None:
    """Its rate is drawn over total_epochs; here a cosine has fallen to 0 in the last step."""
    found = of_command(FSDP + STOPPED)
    outcome, note = entry(found, "trainer.total_training_steps")
    assert outcome == "changes the run" and found.tree["max_steps"] == 100
    assert "the warm-up and the fall of the rate are those of all steps of trainer.total_epochs" in note


@cases("line")
def test_a_schedule_that_ends_with_the_run_is_no_other_run(line: str) -> None:
    outcome, note = entry(of_command(line), "trainer.total_training_steps")
    assert outcome == "approximated" and "the last epoch" in note


@pytest.mark.parametrize("line", [FSDP + " optim.lr_warmup_steps=10", ENGINE + " optim.lr_warmup_steps_ratio=0.1"])
def test_a_warm_up_says_what_the_first_update_has(line: str) -> None:
    """verl's schedules begin at 0, those of here at 1 / (n + 1) of the peak."""
    outcome, note = entry(of_command(line), line.rpartition(" ")[2].partition("=")[0])
    assert outcome == "approximated" and "has (k - 1) / n of the peak there" in note
