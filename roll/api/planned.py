"""The plan of a run as an object."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from roll.api.composing import Arguments, compose
from roll.configs.plan.run_plan import RunPlan
from roll.configs.sections.run import RunConfig
from roll.errors import ConfigError
from roll.run.start.load import plan_text
from roll.run.start.memory_report import memory_report
from roll.run.start.preflight import multimodal_notes
from roll.run.start.start_checks import StartOptions, foreseen


@dataclass(frozen=True)
class Plan:
    """Plan of a run, and the problems that keep it from starting here. `text` is what `roll plan` prints of roles,
    devices, algorithm, the arithmetic of a step and chosen values; `memory` what they take, where that is known.
    `problems` stop a start, `warnings` do not, `notes` say what was not checked. Without a sound configuration there
    are problems only.

    Example: roll.plan("my_run.yaml", num_gpus_per_node=8).devices == {"actor_train": [0, 1, 2, 3], "actor_infer": ...}
    """

    text: str = ""
    memory: str = ""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    config: RunConfig | None = field(default=None, repr=False)
    plan: RunPlan | None = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        """True if a run with what is here would start."""
        return not self.problems

    @property
    def devices(self) -> Mapping[str, list[int]]:
        """The devices of each role: GPUs, or slots on a machine without any."""
        return {} if self.plan is None else {role.role: sorted(role.device_ids) for role in self.plan.layout.roles}

    def __str__(self) -> str:
        warnings = [f"Warning: {warning}" for warning in self.warnings]
        end = ["The run cannot start:", *(f"  - {each}" for each in self.problems)] if self.problems else []
        return "\n".join(filter(None, [self.text, self.memory, *warnings, *self.notes, *(end or ["The plan works."])]))


def plan_of(arguments: Arguments) -> Plan:
    """Raises nothing that is wrong with the configuration: `problems` has it."""
    try:
        composed = compose(arguments, is_plan=True)
        with composed.code_at_hand():
            options, spec = StartOptions(is_plan=True, unset=composed.unset), composed.spec
            loaded = composed.check(is_plan=True)
            config, plan = loaded.config, loaded.plan
            memory = memory_report(config, plan)
            findings = foreseen(spec, loaded, memory, options)
            text = plan_text(spec, loaded)
            warnings = (*loaded.warnings, *multimodal_notes(config), *memory.warnings)
    except ConfigError as error:
        return Plan(problems=error.problems)
    return Plan(text, memory.text, tuple(findings.stops), warnings, tuple(findings.lines), config, plan)
