"""Runs on rows that show pictures, before anything starts: the plan knows it, and who cannot take them is named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.errors import ConfigError
from roll.models.vision.files import vision_of
from roll.pipeline.distill.distill_config import DistillConfig
from roll.pipeline.rlvr.rlvr_checks import local_rows as rlvr_rows
from roll.pipeline.rm.rm_config import RMConfig
from roll.pipeline.rm.rm_pipeline import RMPipeline
from roll.pipeline.rows.row_checks import local_rows, missing_files
from roll.pipeline.rows.row_config import row_plan
from roll.pipeline.sft.sft_config import SFTConfig
from roll.pipeline.sft.sft_pipeline import SFTPipeline
from roll.run.start.shown_models import check_shown
from tests.helpers.configs import config as rlvr
from tests.helpers.pictures import make_model_dir
from tests.unit.datasets.pictures.files import png

ROW = {"instruction": "<image>?", "images": ["a.png"], "output": "1"}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"), "qwen2_5_vl")


def role(strategy: str = "deepspeed_train", device: int = 0, **more: Any) -> dict[str, Any]:
    return {"strategy_args": {"strategy_name": strategy}, "device_mapping": [device], **more}


def sft(model: Path, folder: Path, *rows: dict[str, Any], strategy: str = "deepspeed_train") -> SFTConfig:
    (folder / "a.png").write_bytes(png())
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = {"pretrain": str(model), "num_gpus_per_node": 1, "max_steps": 1, "output_dir": str(folder / "run")}
    learner = role(strategy, data_args={"file_name": str(folder / "rows.jsonl"), "drop_last": False})
    return SFTConfig.model_validate(tree | {"sft_train": learner})


@pytest.mark.parametrize("shows", [True, False])
def test_the_plan_says_whether_rows_show_pictures(shows: bool, model_dir: Path, tmp_path: Path) -> None:
    config = sft(model_dir, tmp_path, ROW if shows else {"instruction": "31", "output": "13"})
    run = SFTPipeline(config, row_plan(config))
    run.prepare(None)
    assert run.plan.shows_pictures is shows and (run.source.rows.media is not None) is shows


def test_the_files_are_looked_at_as_a_run_reads_them(model_dir: Path, tmp_path: Path, tiny_model_dir: Path) -> None:
    config = sft(model_dir, tmp_path, ROW, ROW | {"images": ["b.png"]})
    assert list(missing_files(config)) == []
    (problem,) = local_rows(config)
    assert f"{tmp_path}/rows.jsonl:2, column images[0]: there is no file '{tmp_path}/b.png'" in problem
    blind = sft(tiny_model_dir, tmp_path, ROW)
    assert "column 'images' holds a picture" in next(iter(missing_files(blind))).text
    assert "the run's model does not see pictures" in next(iter(local_rows(blind)))


def test_a_reward_model_learns_from_pairs_with_pictures(model_dir: Path, tmp_path: Path) -> None:
    """Each row ends behind its answer, with one token more at which the reward is read; pictures stay where they
    are."""
    (tmp_path / "a.png").write_bytes(png())
    pair = {"prompt": "<image>?", "images": ["a.png"], "chosen": "1", "rejected": "22"}
    text = {"prompt": "3?", "images": [], "chosen": "1", "rejected": "2"}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (pair, text)))
    learner = role(data_args={"file_name": str(tmp_path / "rows.jsonl"), "drop_last": False})
    tree = {"pretrain": str(model_dir), "num_gpus_per_node": 1, "max_steps": 1, "output_dir": str(tmp_path / "run")}
    config = RMConfig.model_validate(tree | {"reward_train": learner})
    run = RMPipeline(config, row_plan(config))
    run.prepare(None)
    rows = run.source.rows
    assert run.plan.shows_pictures and rows.media is not None
    assert [len(media) for media in rows.media] == [1, 1, 0, 0]
    ends = np.cumsum(rows.lengths) - 1
    assert rows.response_mask.sum() == 4 and rows.response_mask[ends].all()
    (first, *_), (second, *_) = rows.media[:2]
    assert (first.start, first.length) == (second.start, second.length)


def test_a_critic_and_a_reward_model_are_looked_at(model_dir: Path, tiny_model_dir: Path, tmp_path: Path) -> None:
    """A reward model may be of another family, and one whose domain shows none need not see."""
    other = make_model_dir(tmp_path, "qwen3_vl")

    def problems(critic: Path, scorer: Path, of_text: tuple[str, ...] = ()) -> list[str]:
        score = {"reward": "reward_model", **role("hf_infer", 3), "model_args": {"model_name_or_path": str(scorer)}}
        made = rlvr(
            {
                "pretrain": str(model_dir),
                "adv_estimator": "gae",
                "rewards": {"count": score},
                "critic": {**role(device=4), "model_args": {"model_name_or_path": str(critic)}},
            }
        )
        try:
            check_shown(made, "actor_train", vision_of(made.actor_train.model_args), of_text=of_text)
        except ConfigError as error:
            return list(error.problems)
        return []

    assert problems(model_dir, other) == []
    (critic,) = problems(other, model_dir)
    assert critic.startswith("critic: the rows show pictures, of which its model makes other tokens")
    (scorer,) = problems(model_dir, tiny_model_dir)
    assert scorer == "rewards.count: the rows show pictures, which its model does not see. Take one that does"
    assert problems(model_dir, tiny_model_dir, of_text=("rewards.count",)) == []


def test_every_model_makes_the_same_tokens_of_a_picture(model_dir: Path, tiny_model_dir: Path, tmp_path: Path) -> None:
    other = make_model_dir(tmp_path, "qwen3_vl")
    tree = {"num_gpus_per_node": 2, "student": role(), "student_pretrain": str(model_dir)}
    score = role("hf_infer", 1)

    def problems(teacher: Path) -> list[str]:
        config = DistillConfig.model_validate(tree | {"teacher": score, "teacher_pretrain": str(teacher)})
        try:
            check_shown(config, "student", vision_of(config.student.model_args))
        except ConfigError as error:
            return list(error.problems)
        return []

    assert problems(model_dir) == []
    assert problems(tiny_model_dir) == [
        "teacher: the rows show pictures, which its model does not see. Take one that does"
    ]
    (problem,) = problems(other)
    assert problem.startswith(
        "teacher: the rows show pictures, of which its model makes other tokens (32 x 32 for each token"
    )


JUDGED = {
    "reward": "llm_judge",
    "judge_model_type": "inference",
    "judge_prompt": "{response}?",
    "judge_sees_pictures": True,
    **role("hf_infer", 5),
}


def test_a_plan_says_of_models_what_the_run_would(model_dir: Path, tiny_model_dir: Path, tmp_path: Path) -> None:
    """It reads the config.json of each role; of a model that is not here it says nothing."""
    other = make_model_dir(tmp_path, "qwen3_vl")
    (tmp_path / "a.png").write_bytes(png())
    file = tmp_path / "rl.jsonl"

    def problems(critic: object, judge: object, **row: object) -> list[str]:
        rewards = {
            "seen": JUDGED | {"model_args": {"model_name_or_path": str(judge)}},
            "text": {"reward": "exact_match"},
        }
        rows = [{"prompt": "?", "tag": "seen", "ground_truth": "1"} | row, {"prompt": "?", "tag": "text", **row}]
        file.write_text("".join(json.dumps({"ground_truth": "1"} | each) + "\n" for each in rows))
        learner = role(data_args={"file_name": str(file)})
        tree = {"pretrain": str(model_dir), "adv_estimator": "gae", "rewards": rewards, "actor_train": learner}
        made = rlvr(tree | {"critic": {**role(device=4), "model_args": {"model_name_or_path": str(critic)}}})
        return list(rlvr_rows(made))

    shown = {"images": ["a.png"]}
    assert problems(model_dir, model_dir, **shown) == problems("not/here", "not/here", **shown) == []
    assert problems(tiny_model_dir, tiny_model_dir) == []  # no row shows any
    assert problems(tiny_model_dir, model_dir, **shown) == [
        "critic: the rows show pictures, which its model does not see. Take one that does"
    ]
    (critic,) = problems(other, model_dir, **shown)
    assert critic.startswith("critic: the rows show pictures, of which its model makes other tokens")
    (judge,) = problems(model_dir, tiny_model_dir, **shown)
    assert judge.startswith("rewards.seen.judge_sees_pictures: true, but rewards.seen is ")
