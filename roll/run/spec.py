"""Description of one kind of run, known before it starts, and the table of the kinds in this package."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from roll.configs.load.chosen_values import Chosen, KeysInYaml, Machine
from roll.configs.plan.run_plan import RunPlan
from roll.configs.problems import call_hook, hook_findings, named
from roll.configs.sections.run import RunConfig
from roll.configs.tables.roles import Role
from roll.errors import ConfigError
from roll.utils.imports import resolve

T = TypeVar("T")
_THREADS = "roll.run.start.device_defaults:thread_defaults"
_DEVICES = (
    ("roll.run.start.device_defaults:strategy_defaults",),
    ("roll.run.start.device_defaults:device_defaults",),
    (_THREADS,),
)


@dataclass(frozen=True)
class PipelineSpec:
    """Data, and paths (`package.module:object`), so that a dry run imports no more than it asks.

    - `config`: the class of its settings; `run_class`: a Run, built as `Class(config, plan)` by a real run only
    - `plan`: `(config)` to the RunPlan; `batch`: `(config, plan)` and `algorithm`: `(config, plan, user_keys)` to
      printed rows
    - `defaults`: rounds of functions `(config, user_keys, machine)` to what is Chosen; a round sees those before it
    - `problems`, `warnings` (any machine), `machine_problems`, `code_problems`: functions `(config)` beside every run's
    - `data_problems`: in the data, wherever they are; a plan asks `local_rows`, which reads files of this machine alone
    - `reports`: what a plan adds, lines, or Problems that stop a run; `unchecked`: what a plan has not looked at"""

    name: str
    config: str
    run_class: str
    plan: str = "roll.configs.plan.run_plan:build_run_plan"
    batch: str = "roll.configs.plan.describe:train_rows"
    algorithm: str = "roll.configs.plan.describe_learning:rate_rows"
    defaults: tuple[tuple[str, ...], ...] = _DEVICES
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    machine_problems: tuple[str, ...] = ()
    code_problems: tuple[str, ...] = ()
    data_problems: tuple[str, ...] = ()
    local_rows: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    unchecked: str = "data that are not files of this machine"

    def hook_findings(self, hooks: tuple[str, ...], kind: type[T] | tuple[type[T], ...], config: RunConfig) -> list[T]:
        return [problem for hook in hooks for problem in hook_findings(self._owner, hook, kind, config)]

    def choices(
        self, hooks: tuple[str, ...], config: RunConfig, user_keys: KeysInYaml, machine: Machine
    ) -> list[Chosen]:
        return [
            choice for hook in hooks for choice in hook_findings(self._owner, hook, Chosen, config, user_keys, machine)
        ]

    def config_class(self) -> type[RunConfig]:
        """The class of its settings. Raises ConfigError for one whose rows and keys do not fit together."""
        cls = named(self._owner, self.config)
        if not (isinstance(cls, type) and issubclass(cls, RunConfig)):
            raise ConfigError(f"{self._owner}: {self.config} is no class of settings: it must extend RunConfig.")
        if wrong := broken_table(cls):
            raise ConfigError(f"{self._owner}: {self.config}: {wrong}.")
        return cls

    def make_plan(self, config: RunConfig) -> RunPlan:
        return call_hook(self._owner, self.plan, RunPlan, config)

    def batch_rows(self, config: RunConfig, plan: RunPlan) -> list[tuple[str, ...]]:
        return hook_findings(self._owner, self.batch, tuple, config, plan)

    def algorithm_rows(self, config: RunConfig, plan: RunPlan, user_keys: KeysInYaml) -> list[tuple[str, ...]]:
        return hook_findings(self._owner, self.algorithm, tuple, config, plan, user_keys)

    def make_run(self, config: RunConfig, plan: RunPlan) -> Any:
        return named(self._owner, self.run_class)(config, plan)

    @property
    def _owner(self) -> str:
        return f"pipeline {self.name}"


def broken_table(cls: type[RunConfig]) -> str:
    """Return why a class of settings is invalid, in a few words; empty if it is valid."""
    if missing := sorted(cls.__abstractmethods__):
        return f"it must say its {' and '.join(missing)}"
    table: Mapping[str, Role] = getattr(cls, "role_table", {})
    if not table:
        return "it has no role_table, which has a row for each section of a role"
    for name, role in table.items():
        if role.name != name:
            return f"role_table[{name!r}] is the row of {role.name!r}"
        if unknown := [key for key in (name, *role.model_keys) if key not in cls.model_fields]:
            return f"role_table[{name!r}] names {unknown[0]}, and there is no such key"
    return ""


def _rl_defaults(groups: str) -> tuple[tuple[str, ...], ...]:
    first = (
        groups,
        "roll.run.start.rl_defaults:cpu_defaults",
        "roll.run.start.rl_defaults:rate_defaults",
        "roll.run.start.rl_defaults:length_defaults",
        *_DEVICES[0],
    )
    return first, _DEVICES[1], ("roll.run.start.rl_defaults:batch_defaults", _THREADS)


_RL: Mapping[str, Any] = {
    "plan": "roll.configs.plan.batch_plan:build_plan",
    "batch": "roll.configs.plan.describe:batch_rows",
    "algorithm": "roll.configs.plan.describe_learning:algorithm_rows",
    "unchecked": "data that are not files of this machine, addresses of judges",
}
_RL_PROBLEMS = (
    "roll.configs.checks.rl:config_problems",
    "roll.rl.user_code:user_code_problems",
    "roll.rl.rollout_loop:loop_problems",
    "roll.configs.checks.rollout:bench_problems",
)
_RL_WARNINGS = (
    "roll.configs.checks.rl:config_warnings",
    "roll.run.start.rl_defaults:rate_warnings",
)
_RL_CODE = ("roll.rl.rollout_loop:loop_code_problems",)

# Hooks that SFT, distillation, DPO and reward models share.
_FILES, _PAIRS = "roll.pipeline.rows.row_checks:file_problems", "roll.pipeline.rows.row_checks:pair_warnings"
_ROWS: Mapping[str, Any] = {
    "plan": "roll.pipeline.rows.row_config:row_plan",
    "problems": (_FILES,),
    "machine_problems": ("roll.pipeline.rows.row_checks:missing_files",),
    "local_rows": ("roll.pipeline.rows.row_checks:local_rows",),
    "data_problems": ("roll.pipeline.rows.row_checks:row_problems",),
}

PIPELINES: Mapping[str, PipelineSpec] = {
    spec.name: spec
    for spec in (
        PipelineSpec(
            "rlvr",
            config="roll.pipeline.rlvr.rlvr_config:RLVRConfig",
            defaults=_rl_defaults("roll.run.start.rl_defaults:group_defaults"),
            run_class="roll.pipeline.rlvr.rlvr_pipeline:RLVRPipeline",
            problems=(*_RL_PROBLEMS, "roll.pipeline.rlvr.rlvr_checks:rlvr_problems"),
            warnings=(*_RL_WARNINGS, "roll.pipeline.rlvr.rlvr_checks:rlvr_warnings"),
            machine_problems=("roll.pipeline.rlvr.rlvr_checks:missing_files",),
            code_problems=("roll.pipeline.rlvr.rlvr_checks:code_problems", *_RL_CODE),
            local_rows=("roll.pipeline.rlvr.rlvr_checks:local_rows",),
            data_problems=("roll.pipeline.rlvr.rlvr_checks:data_problems",),
            reports=(),
            **(_RL | {"batch": "roll.pipeline.rlvr.rlvr_checks:plan_rows"}),
        ),
        PipelineSpec(
            "agentic",
            config="roll.pipeline.agentic.agentic_config:AgenticConfig",
            defaults=_rl_defaults("roll.pipeline.agentic.agentic_defaults:env_defaults"),
            run_class="roll.pipeline.agentic.agentic_pipeline:AgenticPipeline",
            problems=(*_RL_PROBLEMS, "roll.pipeline.agentic.agentic_checks:agentic_problems"),
            warnings=(*_RL_WARNINGS, "roll.pipeline.agentic.agentic_checks:agentic_warnings"),
            machine_problems=("roll.pipeline.agentic.agentic_checks:machine_problems",),
            code_problems=("roll.pipeline.agentic.agentic_checks:code_problems", *_RL_CODE),
            reports=("roll.pipeline.agentic.agentic_checks:reports",),
            local_rows=("roll.pipeline.agentic.agentic_checks:unloaded_sets",),
            data_problems=("roll.pipeline.agentic.agentic_checks:hub_problems",),
            **_RL,
        ),
        PipelineSpec(
            "sft",
            config="roll.pipeline.sft.sft_config:SFTConfig",
            run_class="roll.pipeline.sft.sft_pipeline:SFTPipeline",
            warnings=("roll.pipeline.sft.sft_config:sft_warnings",),
            **_ROWS,
        ),
        PipelineSpec(
            "distill",
            config="roll.pipeline.distill.distill_config:DistillConfig",
            run_class="roll.pipeline.distill.distill_pipeline:DistillPipeline",
            batch="roll.pipeline.distill.distill_config:distill_rows",
            warnings=("roll.pipeline.distill.distill_config:distill_warnings",),
            **dict[str, Any](_ROWS, problems=(_FILES, "roll.pipeline.distill.distill_config:distill_problems")),
        ),
        PipelineSpec(
            "dpo",
            config="roll.pipeline.dpo.dpo_config:DPOConfig",
            run_class="roll.pipeline.dpo.dpo_pipeline:DPOPipeline",
            batch="roll.pipeline.dpo.dpo_config:dpo_rows",
            warnings=(_PAIRS, "roll.pipeline.dpo.dpo_config:dpo_warnings"),
            **dict[str, Any](
                _ROWS,
                plan="roll.pipeline.dpo.dpo_config:dpo_plan",
                problems=(_FILES, "roll.pipeline.dpo.dpo_config:dpo_problems"),
            ),
        ),
        PipelineSpec(
            "rm",
            config="roll.pipeline.rm.rm_config:RMConfig",
            run_class="roll.pipeline.rm.rm_pipeline:RMPipeline",
            warnings=(_PAIRS,),
            **_ROWS,
        ),
    )
}


KIND_BY_KEY: Mapping[str, str] = {
    **dict.fromkeys(("rewards", "reward_model", "num_return_sequences_in_group"), "rlvr"),
    **dict.fromkeys(("train_env_manager", "val_env_manager", "custom_envs", "agent_endpoint"), "agentic"),
    "sft_train": "sft",
    "reward_train": "rm",
    **dict.fromkeys(("student", "student_pretrain"), "distill"),
    **dict.fromkeys(("chosen_key", "rejected_key", "beta"), "dpo"),
}
"""The kind of run whose key it is; of several keys of a YAML the first one here counts: a fragment may bring others."""


def pipeline_of(name: str) -> PipelineSpec:
    """The spec of a built-in name, or under `package.module:SPEC`. Raises ConfigError if there is none."""
    if name in PIPELINES:
        return PIPELINES[name]
    try:
        spec = resolve(name, dict.fromkeys(PIPELINES, ""))
    except ImportError as error:
        raise ConfigError(f"pipeline: {error}") from error
    if not isinstance(spec, PipelineSpec):
        raise ConfigError(f"pipeline: {name} is a {type(spec).__name__}, not a PipelineSpec.")
    return spec
