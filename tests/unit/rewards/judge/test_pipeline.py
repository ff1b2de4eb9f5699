"""Who judges when: the pipeline's own wiring, with engines that are functions and no process."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from roll.configs.plan.batch_plan import build_plan
from roll.distributed.executor.placement import Claim, Placement
from roll.distributed.executor.rollout.engine_client import CutLengths
from roll.pipeline.rlvr import rlvr_pipeline
from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline
from roll.types.rollout import Generation, GenerationRequest
from tests.helpers.configs import config


class Engines:
    """Of one role: each answer is the role's own."""

    def __init__(self, role: str, answer: np.ndarray):
        self.role, self.parts, self.recovery = role, (), None
        self.answer, self.num_requests = answer, 0
        self.cut = CutLengths(are_taken=False)

    @property
    def everything(self) -> Claim:
        return Claim(self)  # type: ignore[arg-type]

    def metrics(self) -> dict[str, float]:
        return {}

    async def generate(self, request: GenerationRequest) -> list[Generation]:
        self.num_requests += request.num_samples
        size = len(self.answer)
        one = Generation(self.answer, np.zeros(size, np.float32), np.zeros(size, np.int32), "stop")
        return [one] * request.num_samples


@pytest.mark.parametrize("device, is_late", [(3, False), (2, True)], ids=["its own devices", "the policy's"])
def test_a_judge_on_its_own_devices_is_asked_at_once_and_one_that_shares_them_after_the_rollout(
    device: int, is_late: bool, tiny_model_dir: Path, tiny_tokenizer: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    file = tmp_path / "train.jsonl"
    rows = [{"prompt": "1 2", "ground_truth": "3", "tag": tag} for tag in ("math", "code")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = {"reward": "llm_judge", "judge_model_type": "cluster", "judge_prompt": "{response} {reference}"}
    engine = {"strategy_name": "hf_infer"}
    made = config(
        {
            "pretrain": str(tiny_model_dir),
            "actor_train.data_args.file_name": str(file),
            "rewards": {"math": judged, "code": judged | {"judge_scores": {"yes": 0.25}}},
            "reward_model": {
                "strategy_args": engine,
                "device_mapping": [device],
                "model_args": {"model_name_or_path": str(tiny_model_dir)},
            },
            "output_dir": str(tmp_path / "out"),
        }
    )
    words = {"actor_infer": "7", "reward_model": "yes"}
    engines = {
        role: Engines(role, np.array(tiny_tokenizer(text, add_special_tokens=False)["input_ids"], np.int32))
        for role, text in words.items()
    }
    placement = Placement(())
    clusters = SimpleNamespace(
        engines=engines, actor_infer=engines["actor_infer"], placement=placement, wait_ready=lambda: None
    )
    monkeypatch.setattr(rlvr_pipeline, "RLClusters", lambda *_, **__: clusters)
    pipeline = RLVRPipeline(made, build_plan(made))
    try:
        pipeline.prepare(None)
        pipeline.build()
        scheduler = pipeline.scheduler
        assert scheduler is not None
        groups = scheduler.collect(0)
        assert engines["reward_model"].num_requests == (0 if is_late else 256)
        assert pipeline.late_rewards.is_empty != is_late
        if is_late:
            groups = scheduler.rescore(groups, pipeline.late_rewards.complete(groups.sampled), 0)
        assert engines["reward_model"].num_requests == 256
        rewards = {(g.task.domain, t.reward, t.failure) for g in groups.groups for t in g.trajectories}
        assert rewards == {("math", 1.0, None), ("code", 0.25, None)}
    finally:
        pipeline.loop.close()
