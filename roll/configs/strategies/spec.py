"""Description of a strategy that is available before anything of it is built. No engine and no torch: a dry run reads
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from roll.configs.problems import call_hook, hook_findings
from roll.configs.strategies.features import Feature

if TYPE_CHECKING:
    from roll.configs.sections.model import Head
    from roll.configs.tables.roles import Use

T = TypeVar("T")
NARROWING = ("top_p", "top_k", "min_new_tokens", "repetition_penalty")


@dataclass(frozen=True)
class Package:
    """A package a strategy imports, and the extra of this project that installs it, or else the command that does."""

    module: str
    extra: str = ""
    command: str = ""

    @property
    def install(self) -> str:
        return self.command or (f'pip install -e ".[{self.extra}]"' if self.extra else "pip install -e .")


HEAD_KERNELS: Mapping[str, Package] = {
    "cut_cross_entropy": Package("cut_cross_entropy", command="pip install cut-cross-entropy"),
}
"""Values of `fused_kernel_options.impl_backend` beside torch, and what they need."""


@dataclass(frozen=True)
class GpuShareKey:
    """The engine argument that sets how much of its GPUs an engine takes. `default_share`: of an engine alone on its
    GPUs. `holds_everything`: activations and graphs come out of the share as well."""

    name: str
    default_share: float
    holds_everything: bool


@dataclass(frozen=True)
class LoraSync:
    """How an engine gets LoRA adapters apart from the weights. `key`: the key of strategy_config that asks for it.
    `max_rank`: the largest rank of an adapter that the engine takes."""

    key: str
    max_rank: int


@dataclass(frozen=True)
class StrategySpec:
    """One strategy. Paths are `package.module:object`, imported when they are asked for; "" where there is nothing to
    ask.

    `classes`: what it can do, and the class that does it. `supports`: its features, a set of `Feature` or of their
    names. ValueError for an unknown feature.
    """

    name: str
    classes: Mapping[Use, str]
    heads: tuple[Head, ...] = ("lm",)
    packages: tuple[Package, ...] = ()
    supports: frozenset[Feature] = frozenset()
    not_on: Mapping[str, str] = field(default_factory=dict)  # platforms that it cannot run on: why, and what to use
    packages_on: Mapping[str, tuple[Package, ...]] = field(default_factory=dict)  # platforms that take more packages
    lora_sync: LoraSync | None = None  # of an engine that gets LoRA adapters apart from the weights
    settings: str = ""  # the class (roll.configs.base:Settings) that strategy_config must fit
    problems: str = ""  # (Choice) -> Problems that hold on any machine
    warnings: str = ""  # (Choice) -> texts
    machine_problems: str = ""  # (Choice) -> Problems of this machine
    model_problems: str = ""  # (Choice, config.json) -> Problems; "": heads against tensor parallel
    engine_model_problems: str = ""  # (Choice, config.json) -> Problems of an engine with this model
    cpu_model_problems: str = ""  # (Choice, config.json) -> Problems of an engine on a machine without GPUs
    unchecked_without_model: str = ""  # what of model_problems goes unchecked where config.json is not there, in words
    sizes: str = ""  # (WorkerConfig) -> ParallelSizes; "": every worker is a data-parallel rank
    environment: str = ""  # (WorkerConfig, on_cpu, the run's own directory) -> variables of its workers
    tested: str = "every_role"  # its section of engine_arguments.yaml
    saved_facts: str = ""  # (WorkerConfig, data-parallel ranks) -> facts its saved state is tied to
    memory: Mapping[Use, str] = field(default_factory=dict)  # (RoleFacts) -> RankMemory
    size_keys: tuple[str, ...] = ()  # keys of strategy_config whose product is num_gpus_per_worker by default
    share: GpuShareKey | None = None
    limit_keys: tuple[str, ...] = ()  # arguments of an engine that limit how many responses it samples at once
    truncating_sampling_keys: tuple[str, ...] = (
        NARROWING  # sampling settings that change the distribution its log-probs are of
    )
    retired: Mapping[str, str] = field(default_factory=dict)  # keys that older engines had, and why they do nothing

    def __post_init__(self) -> None:
        object.__setattr__(self, "supports", frozenset(map(Feature, self.supports)))

    def call_hook(self, path: str, kind: type[T], *arguments: Any) -> T:
        """Call the function at one of the paths, and return its result, an object of `kind`."""
        return call_hook(f"strategy {self.name}", path, kind, *arguments)

    def hook_findings(self, path: str, kind: type[T], *arguments: Any) -> list[T]:
        """All that the function at one of the paths finds; nothing where there is none."""
        return hook_findings(f"strategy {self.name}", path, kind, *arguments) if path else []
