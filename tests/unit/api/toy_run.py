"""A kind of run whose steps only count, so that a run from Python takes milliseconds. Its keys are those of sft."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from roll.configs.plan.run_plan import RunPlan
from roll.configs.sections.run import RunConfig
from roll.errors import WorkerError
from roll.rl.pipeline import VIEW
from roll.rl.records.recorder import RolloutRecord, RolloutRecorder
from roll.run.loop import Run
from roll.run.spec import PIPELINES


class ToyRun(Run):
    """`closed` counts how often a run was closed."""

    view = VIEW
    closed = 0

    def __init__(self, config: RunConfig, plan: RunPlan):
        super().__init__(config)

    def build(self) -> None:
        self.recorder = RolloutRecorder(self.output_dir / "rollouts")

    def step(self, step: int) -> dict[str, float]:
        if self.config.exp_name == "fails" and step == 1:
            raise WorkerError("actor_train rank 0 died")
        found = [RolloutRecord("2 + 2", str(step), 0.5, 0, "toy", "stop")]
        self.recorder.record(step + 1, found)
        return {"rollout/reward_mean": step / 3}

    def evaluate(self, steps_done: int) -> dict[str, float]:
        return {}

    def save(self, directory: Path) -> dict[str, Any]:
        (directory / "hf_model").mkdir()
        (directory / "hf_model" / "config.json").write_text("{}")
        return {}

    def restore(self, directory: Path, state: Mapping[str, Any], steps_done: int) -> None:
        return None

    def close(self) -> None:
        ToyRun.closed += 1


SPEC = replace(
    PIPELINES["sft"],
    name="toy",
    run_class=f"{__name__}:ToyRun",
    machine_problems=(),
    code_problems=(),
    data_problems=(),
    local_rows=(),
    reports=(),
)
