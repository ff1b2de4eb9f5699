"""What is to be known of one kind of run before it starts, and the table of those that belong to this package."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roll.errors import ConfigError
from roll.utils.imports import resolve


@dataclass(frozen=True)
class PipelineSpec:
    """Data, and paths (`package.module:object`), so that a dry run imports no more than it asks.

    `config`: the class of its settings, a RunConfig. `run_class`: a Run, built as `Class(config, plan)` by a real run
    only. `plan`: `(config)` to the RunPlan. `batch`: `(config, plan)` to the rows that the printed plan has under
    "Batch". Functions of the checked settings beside those that every run passes, each `(config)` to what it finds:
    `problems` and `warnings` on any machine, `machine_problems` on this one, `data_problems` in the data and in the
    user's own code. `unchecked`: what a dry run has not looked at.
    """

    name: str
    config: str
    run_class: str
    plan: str = "roll.configs.plan.run_plan:build_run_plan"
    batch: str = "roll.configs.plan.describe:train_rows"
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    machine_problems: tuple[str, ...] = ()
    data_problems: tuple[str, ...] = ()
    unchecked: str = "rows of the data files, data that are not on this machine"

    def ask(self, hooks: tuple[str, ...], config: Any) -> list[Any]:
        """What all functions of one field find."""
        return [found for hook in hooks for found in self.part(hook)(config)]

    def part(self, path: str) -> Any:
        """What one of the paths names."""
        try:
            return resolve(path)
        except ImportError as error:
            raise ConfigError(f"pipeline {self.name}: {error}") from error


_RL = {
    "plan": "roll.configs.plan.batch_plan:build_plan",
    "batch": "roll.configs.plan.describe_batch:batch_rows",
    "unchecked": "rows of the data files, data that are not on this machine, imports of rewards and environments, "
    "addresses of judges",
}
_RL_PROBLEMS = ("roll.configs.checks:config_problems", "roll.pipeline.own_code:own_code_problems")
_RL_WARNINGS = ("roll.configs.checks:config_warnings",)
_RLVR, _AGENTIC, _SFT = "roll.pipeline.rlvr", "roll.pipeline.agentic", "roll.pipeline.sft"

PIPELINES: Mapping[str, PipelineSpec] = {
    spec.name: spec
    for spec in (
        PipelineSpec(
            "rlvr",
            config=f"{_RLVR}.rlvr_config:RLVRConfig",
            run_class=f"{_RLVR}.rlvr_pipeline:RLVRPipeline",
            problems=(*_RL_PROBLEMS, f"{_RLVR}.rlvr_checks:rlvr_problems"),
            warnings=(*_RL_WARNINGS, f"{_RLVR}.rlvr_checks:rlvr_warnings"),
            machine_problems=(f"{_RLVR}.rlvr_checks:missing_files",),
            data_problems=(f"{_RLVR}.rlvr_checks:data_and_reward_problems",),
            **_RL,
        ),
        PipelineSpec(
            "agentic",
            config=f"{_AGENTIC}.agentic_config:AgenticConfig",
            run_class=f"{_AGENTIC}.agentic_pipeline:AgenticPipeline",
            problems=(*_RL_PROBLEMS, f"{_AGENTIC}.agentic_checks:agentic_problems"),
            warnings=(*_RL_WARNINGS, f"{_AGENTIC}.agentic_checks:agentic_warnings"),
            machine_problems=(f"{_AGENTIC}.agentic_checks:machine_problems",),
            data_problems=(f"{_AGENTIC}.agentic_checks:environment_problems",),
            **_RL,
        ),
        PipelineSpec(
            "sft",
            config=f"{_SFT}.sft_config:SFTConfig",
            run_class=f"{_SFT}.sft_pipeline:SFTPipeline",
            plan=f"{_SFT}.sft_config:sft_plan",
            problems=(f"{_SFT}.sft_checks:sft_problems",),
            warnings=(f"{_SFT}.sft_checks:sft_warnings",),
            machine_problems=(f"{_SFT}.sft_checks:missing_files",),
            data_problems=(f"{_SFT}.sft_checks:row_problems",),
        ),
    )
}


def pipeline_of(name: str) -> PipelineSpec:
    """The spec of a built-in name, or under `package.module:SPEC`. Raises ConfigError if there is none."""
    if name in PIPELINES:
        return PIPELINES[name]
    try:
        found = resolve(name, dict.fromkeys(PIPELINES, ""))
    except ImportError as error:
        raise ConfigError(f"pipeline: {error}") from error
    if not isinstance(found, PipelineSpec):
        raise ConfigError(f"pipeline: {name} is a {type(found).__name__}, not a PipelineSpec.")
    return found
