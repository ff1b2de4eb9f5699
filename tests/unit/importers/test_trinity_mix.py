"""Trinity-RFT's mix and mix_chord become `mix`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.commands.run import main
from roll.commands.table import main as roll
from roll.importers.command import imported_from
from roll.importers.convert import Imported, read
from tests.helpers.cases import cases

SOURCE = Path(__file__).parents[2] / "importers" / "trinity_dapo.yaml"
AT, ARGS = "buffer.trainer_input.auxiliary_buffers.sft_dataset", "algorithm.policy_loss_fn_args"
MIX = ("algorithm.algorithm_type=mix", f"{AT}.path=expert", "algorithm.sample_strategy=mix")


def imported(*words: str) -> Imported:
    return imported_from(read(SOURCE, words), source=SOURCE)


def entry(found: Imported, key: str) -> tuple[str, str]:
    return next((entry.outcome, entry.note) for entry in found.entries if entry.key == key)


def test_a_mix_is_imported_with_its_share_its_weight_and_its_columns() -> None:
    found = imported(
        *MIX, "algorithm.sample_strategy_args.expert_data_ratio=0.2", f"{ARGS}.mu=0.3",
        f"{AT}.format.messages_key=messages", f"{AT}.format.prompt_type=messages", f"{AT}.total_epochs=25",
        f"{ARGS}.use_token_level_loss_in_sft=false", "algorithm.entropy_loss_fn=mix", "algorithm.kl_loss_fn=k2",
    )  # fmt: skip
    assert found.tree["mix"] == {
        "weight": 0.3,
        "loss_agg_mode": "seq-mean-token-mean",
        "rows": {"sft_dataset": {"share": 0.2, "data_args": {"file_name": ["expert"], "messages": "messages"}}},
    }
    outcome, note = entry(found, "algorithm.sample_strategy_args.expert_data_ratio")
    assert outcome == "approximated" and "join all samples" in note
    assert "counts 1 - weight as well" in entry(found, f"{ARGS}.mu")[1]
    for key in ("algorithm.sample_strategy", "algorithm.entropy_loss_fn", f"{AT}.total_epochs"):
        assert entry(found, key)[0] == "asks for nothing", key


@cases("words, weights")
def test_the_weight_of_chord_rises_and_falls_as_it_did(words: list[str], weights: dict[str, Any]) -> None:
    found = imported(*MIX, "algorithm.algorithm_type=mix_chord", *(f"{ARGS}.{word}" for word in words))
    rows = found.tree["mix"].pop("rows")["sft_dataset"]
    assert found.tree["mix"] == weights | {"loss_agg_mode": "token-mean"}
    assert (rows["share"], rows["prompt_key"], rows["response_key"]) == (0.5, "prompt", "response")


def test_keys_of_a_mix_without_one_ask_for_nothing_and_a_mix_without_rows_says_so() -> None:
    found = imported(f"{ARGS}.mu=0.3", f"{AT}.path=expert")
    assert entry(found, f"{ARGS}.mu")[0] == "asks for nothing" and "mix" not in found.tree
    outcome, note = entry(imported(*MIX[::2], f"{ARGS}.mu=0.3"), f"{ARGS}.mu")
    assert outcome == "not available" and "mix.rows.sft_dataset.data_args.file_name" in note


def test_the_older_name_of_the_experts_rows_is_known_and_without_a_mix_they_are_not_lost() -> None:
    older = "buffer.trainer_input.sft_warmup_dataset"
    found = imported(*MIX[::2], f"{older}.path=expert", f"{older}.split=train", f"{older}.format.messages_key=messages")
    rows = found.tree["mix"]["rows"]["sft_dataset"]
    assert rows["data_args"] == {"file_name": ["expert"], "split": "train", "messages": "messages"}
    assert entry(found, f"{older}.path")[0] == "mapped"
    outcome, note = entry(imported(f"{older}.path=expert"), f"{older}.path")
    assert outcome == "not available" and "in a stage before" in note


def test_an_imported_mix_passes_a_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert roll(["import", str(SOURCE), *MIX, f"{ARGS}.mu=0.2", "--out", "my.yaml"]) == 0
    tree: dict[str, Any] = yaml.safe_load((tmp_path / "my.yaml").read_text())
    assert tree["mix"]["weight"] == 0.2
    code = main(
        "rlvr",
        ["--config_path", str(tmp_path), "--config_name", "my", "max_steps=4", "--dry_run", "--all", "--elsewhere"],
    )
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert "of sft_dataset beside" in shown.out
