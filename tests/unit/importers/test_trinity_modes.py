"""Trinity-RFT's runs in parts, buffers and evaluation sets become ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.commands.run import main
from roll.commands.table import main as roll
from roll.importers.command import imported_from
from roll.importers.convert import Imported, read

SOURCE = Path(__file__).parents[2] / "importers" / "trinity_ppo_megatron.yaml"
BUFFER = "buffer.trainer_input.experience_buffer"


def imported(*words: str) -> Imported:
    return imported_from(read(SOURCE, words), source=SOURCE)


def entry(found: Imported, key: str) -> tuple[str, str]:
    return next((entry.outcome, entry.note) for entry in found.entries if entry.key == key)


def test_further_sets_stand_beside_the_validation_under_their_names() -> None:
    found = imported()
    assert found.tree["validation"]["data_args"]["file_name"] == ["data/test"]
    assert found.tree["eval_sets"] == {
        "other": {
            "data_args": {
                "file_name": ["data/other"],
                "split": "train",
                "prompt": "prompt",
                "ground_truth": "response",
                "truncation": "left",
            },
            "generating_args": {"temperature": 1.0},
        }
    }
    outcome, note = entry(found, "buffer.explorer_input.eval_tasksets.1.path")
    assert outcome == "mapped" and "eval_sets.other" in note


@pytest.mark.parametrize("mode", ["explore", "train", "bench"])
def test_a_part_of_a_run_is_imported_as_such_and_passes_a_dry_run(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [f"mode={mode}", f"{BUFFER}.max_read_timeout=60", "explorer.bench_on_latest_checkpoint=true"]
    words += ["buffer.total_steps=8"] if mode == "train" else []
    assert roll(["import", str(SOURCE), *words, "--out", "my.yaml"]) == 0
    tree: dict[str, Any] = yaml.safe_load((tmp_path / "my.yaml").read_text())
    assert tree["mode"] == mode
    if mode == "bench":
        assert tree["resume_from_checkpoint"] is True and "experience" not in tree
    else:
        wanted = {"read_timeout_s": 60.0, "on_timeout": "partial"}
        assert tree["experience"] == wanted
    code = main(
        "rlvr", ["--config_path", str(tmp_path), "--config_name", "my", "max_steps=4", "--dry_run", "--elsewhere"]
    )
    assert code == 0, capsys.readouterr().err


def test_what_a_run_in_one_process_has_no_use_for_is_said() -> None:
    at = f"{BUFFER}.replay_buffer"
    found = imported(f"{at}.enable=true", f"{BUFFER}.max_read_timeout=60")
    outcome, note = entry(found, f"{at}.enable")
    assert outcome == "asks for nothing" and "without reuse_cooldown_time" in note
    back = imported(f"{at}.enable=true", f"{at}.reuse_cooldown_time=30")
    outcome, note = entry(back, f"{at}.reuse_cooldown_time")
    assert outcome == "changes the run" and "experience.reuse" in note
    assert entry(found, f"{BUFFER}.max_read_timeout")[0] == "asks for nothing"
    assert entry(found, f"{BUFFER}.storage_type")[0] == "asks for nothing"
    assert "experience" not in found.tree
    assert entry(imported("mode=serve"), "mode") == (
        "changes the run",
        "mode: serve is not here: both, colocate, explore, train, bench are",
    )
