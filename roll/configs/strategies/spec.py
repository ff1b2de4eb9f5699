"""What is to be known of a strategy before anything of it is built. No engine and no torch: a dry run reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from roll.configs.own_hooks import ask, findings

if TYPE_CHECKING:
    from roll.configs.cluster import WorkerConfig
    from roll.configs.roles import Head, Role, Use

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


@dataclass(frozen=True)
class ShareKey:
    """The engine argument that sets how much of its GPUs an engine takes. `own_default`: of an engine alone on its
    GPUs. `holds_everything`: activations and graphs come out of the share as well."""

    name: str
    own_default: float
    holds_everything: bool


@dataclass(frozen=True)
class ModelRegistry:
    """Place of an engine's list of architectures. `engine`: its name for people; `read`: path of a function (folder
    of `package`) -> Registry; `plugins`: the group of entry points by which others bring more."""

    engine: str
    package: str
    read: str
    plugins: str


@dataclass(frozen=True)
class Choice:
    """A role that runs on a strategy, as the strategy's spec is asked about it."""

    role: Role
    worker: WorkerConfig
    max_grad_norm: float = 1.0
    num_nodes: int = 1
    longest: int = 0  # tokens of the longest row

    @property
    def name_key(self) -> str:
        """The YAML path of the strategy's name."""
        return f"{self.role.name}.strategy_args.strategy_name"

    @property
    def at(self) -> str:
        """The YAML path of the strategy's own settings."""
        return f"{self.role.name}.strategy_args.strategy_config"


@dataclass(frozen=True)
class StrategySpec:
    """One strategy. Paths are `package.module:object`, imported when they are asked for; "" where there is nothing to
    ask.

    `classes`: what it can do, and the class that does it; `planned`: what it will do, and does not yet.
    """

    name: str
    classes: Mapping[Use, str]
    planned: tuple[Use, ...] = ()
    heads: tuple[Head, ...] = ("lm",)
    packages: tuple[Package, ...] = ()
    devices_per_worker: bool = False  # several devices may form one worker
    adapts: bool = False  # a role that learns may train LoRA adapters
    sends_adapters: bool = False  # by themselves, not merged into weights
    adapter_key: str = ""  # key of strategy_config by which an engine gets them so
    largest_adapter: int = 0  # the rank up to which it does
    adapts_experts: bool = False  # on each matrix of each expert of a mixture, too
    takes_over: bool = False  # a run may begin with the moments of another one's optimizer
    balances: bool = False  # a mixture may train with a load-balancing loss
    replays: bool = False  # a mixture may train with given experts
    trains_heads: bool = False  # a model's head for further tokens may be trained with it
    tells_routes: bool = False  # an engine that says which experts the tokens of its answers went to
    offloads_activations: bool = False  # what waits for the backward pass may do so in host memory
    compiles: bool = False  # its model may run by torch.compile
    head_kernels: bool = False  # a kernel may compute its log-probs from hidden states
    hands_over_head: bool = False  # a student may get its hidden states and its head
    runs_transformers: bool = False  # its model is a module of transformers
    packs: bool = False  # rows may stand one after the other in one sequence
    shares_prefixes: bool = False  # of rows, each computed once (use_prefix_sharing)
    shares_sequences: bool = False  # that sequence may be divided over ranks (ulysses_size)
    settings: str = ""  # the class (roll.configs.base:Settings) that strategy_config must fit
    problems: str = ""  # (Choice) -> Problems that hold on any machine
    warnings: str = ""  # (Choice) -> texts
    machine_problems: str = ""  # (Choice) -> Problems of this machine
    model_problems: str = ""  # (Choice, config.json) -> Problems; "": heads against tensor parallel
    looks_at_model: str = ""  # what of model_problems goes unchecked where config.json is not there, in words
    sizes: str = ""  # (WorkerConfig) -> ParallelSizes; "": every worker is a data-parallel rank
    environment: str = ""  # (WorkerConfig, on_cpu, the run's own directory) -> variables of its workers
    saved_facts: str = ""  # (facts, WorkerConfig, data-parallel ranks) -> facts its saved state is tied to
    memory: Mapping[Use, str] = field(default_factory=dict)  # (RoleFacts) -> RankMemory
    size_keys: tuple[str, ...] = ()  # keys of strategy_config whose product is num_gpus_per_worker by default
    share: ShareKey | None = None
    registry: ModelRegistry | None = None
    narrows: tuple[str, ...] = NARROWING  # sampling settings that change the distribution its log-probs are of
    retired: Mapping[str, str] = field(default_factory=dict)  # keys that older engines had, and why they do nothing

    @property
    def uses(self) -> tuple[Use, ...]:
        return (*self.classes, *self.planned)

    @property
    def is_implemented(self) -> bool:
        return bool(self.classes)

    def ask(self, path: str, kind: type[T], *arguments: Any) -> T:
        """What the function at one of the paths says, an object of `kind`."""
        return ask(f"strategy {self.name}", path, kind, *arguments)

    def findings(self, path: str, kind: type[T], *arguments: Any) -> list[T]:
        """All that the function at one of the paths finds; nothing where there is none."""
        return findings(f"strategy {self.name}", path, kind, *arguments) if path else []
