"""What imports say of verl's fine-tuning: how rows weigh, and what its versions take for granted."""

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import Imported, source_keys
from roll.importers.shell.script import find_command
from roll.importers.verl.files import Composed
from tests.unit.importers.test_import import entry

FSDP = "torchrun --nproc_per_node={} -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=/m"
ENGINE = "torchrun --nproc_per_node={} -m verl.trainer.sft_trainer model.path=/m"
SIZES = " data.train_batch_size=64 data.micro_batch_size_per_gpu=4"


def of_command(line: str, ranks: int = 4) -> Imported:
    command = find_command(line.format(ranks))
    return imported_from(source_keys(Composed(), (), command), "verl")


@pytest.mark.parametrize(
    "line, ranks, told",
    [
        (FSDP + SIZES, 4, "each of the 16 micro batches of a step weighs the same"),
        (FSDP + SIZES + " data.balance_dp_token=true", 4, "each of the 4 passes of a step weighs the same"),
        (FSDP + SIZES.replace("=4", "=16") + " data.balance_dp_token=true", 4, ""),
        (FSDP + SIZES.replace("=4", "=64"), 1, ""),
        (ENGINE + SIZES, 4, ""),
    ],
)
def test_a_mean_of_means_is_told(line: str, ranks: int, told: str) -> None:
    outcome, note = entry(of_command(line, ranks), "data.train_batch_size")
    assert (outcome == "approximated") == bool(told) and told in note


@pytest.mark.parametrize(
    "line, resumes, told",
    [
        (FSDP, False, True),
        (FSDP + " trainer.device=cuda", True, False),
        (FSDP + " trainer.resume_mode=disable", False, False),
        (FSDP + " trainer.resume_path=/x", "/x", False),
        (ENGINE, True, False),
    ],
)
def test_whether_a_run_resumes_by_default_depends_on_the_version(line: str, resumes: object, told: bool) -> None:
    found = of_command(line)
    assert found.tree["resume_from_checkpoint"] == resumes
    assert any("starts anew before" in note for note in found.notes) == told


def test_the_program_says_which_defaults_hold() -> None:
    assert of_command(FSDP + " model.path=/m").tree["sft_train"]["training_args"]["learning_rate"] == 1e-5
    assert of_command(ENGINE).tree["sft_train"]["training_args"]["learning_rate"] == 1e-3
