"""Every strategy by name: its classes, the roles it serves, and what it needs. Imports no engine and no torch."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from roll.configs.cluster import WorkerConfig
from roll.configs.megatron import split_settings
from roll.configs.megatron_checks import megatron_problems, missing_packages
from roll.configs.problems import Problem, nearest
from roll.configs.roles import TASKS, Role, Use
from roll.distributed.strategy import hf_infer_args, sglang_args, vllm_args
from roll.utils.imports import is_installed


@dataclass(frozen=True)
class Package:
    """A package a strategy imports, and the extra of this project that installs it."""

    module: str
    extra: str

    @property
    def install(self) -> str:
        return f'pip install -e ".[{self.extra}]"' if self.extra else "pip install -e ."


@dataclass(frozen=True)
class StrategySpec:
    """`classes` maps what a strategy can do to the class that does it. A strategy without classes is known and not
    written yet."""

    name: str
    uses: tuple[Use, ...]
    classes: Mapping[Use, str]
    packages: tuple[Package, ...]
    devices_per_worker: bool = False  # True: several devices may form one worker
    packs: bool = False  # True: rows may stand one after the other in one sequence

    @property
    def is_implemented(self) -> bool:
        return bool(self.classes)


TORCH = (Package("torch", ""), Package("transformers", ""))
DEEPSPEED = (*TORCH, Package("deepspeed", "deepspeed"))
MEGATRON = (*TORCH, Package("megatron", "megatron"))
HERE = "roll.distributed.strategy"

_SPECS = (
    StrategySpec("deepspeed_train", ("train",), {"train": f"{HERE}.deepspeed:DeepSpeedTrainStrategy"}, DEEPSPEED),
    StrategySpec("deepspeed_infer", ("score",), {"score": f"{HERE}.deepspeed_infer:DeepSpeedInferStrategy"}, DEEPSPEED),
    StrategySpec(
        "hf_infer",
        ("score", "generate"),
        {"score": f"{HERE}.hf_forward:HfForwardStrategy", "generate": f"{HERE}.hf_infer:HfInferStrategy"},
        TORCH,
    ),
    StrategySpec(
        "vllm",
        ("generate",),
        {"generate": f"{HERE}.vllm:VllmStrategy"},
        (*TORCH, Package("vllm", "vllm")),
        devices_per_worker=True,
    ),
    StrategySpec(
        "sglang",
        ("generate",),
        {"generate": f"{HERE}.sglang:SglangStrategy"},
        (*TORCH, Package("sglang", "sglang")),
        devices_per_worker=True,
    ),
    StrategySpec(
        "megatron_train", ("train",), {"train": f"{HERE}.megatron.train:MegatronTrainStrategy"}, MEGATRON, packs=True
    ),
    StrategySpec(
        "megatron_infer", ("score",), {"score": f"{HERE}.megatron.infer:MegatronInferStrategy"}, MEGATRON, packs=True
    ),
    StrategySpec("fsdp2_train", ("train",), {}, TORCH),
    StrategySpec("fsdp2_infer", ("score",), {}, TORCH),
    StrategySpec("diffusion_deepspeed_train", ("train",), {}, DEEPSPEED),
)
STRATEGIES: Mapping[str, StrategySpec] = {spec.name: spec for spec in _SPECS}
_ENGINE_ARGUMENTS: Mapping[str, Callable[[str, WorkerConfig], Iterator[Problem]]] = {
    "hf_infer": hf_infer_args.argument_problems,
    "vllm": vllm_args.argument_problems,
    "sglang": sglang_args.argument_problems,
}


def strategy_class_path(strategy_name: str, use: Use) -> str:
    """`package.module:Class` of this strategy for a role of this use. KeyError for what the preflight refuses."""
    return STRATEGIES[strategy_name].classes[use]


def serving(use: Use) -> list[str]:
    """Names of the strategies for roles of a use, the ones that exist first."""
    able = [spec for spec in STRATEGIES.values() if use in spec.uses]
    return [spec.name for spec in sorted(able, key=lambda spec: not spec.is_implemented)]


def strategy_problems(role: Role, worker: WorkerConfig) -> Iterator[Problem]:
    """A missing or unknown strategy, one that cannot serve the role, devices it cannot use, settings a rollout engine
    does not have (as far as the engine is installed)."""
    key = f"{role.name}.strategy_args.strategy_name"
    if worker.strategy_name is None:
        choices = ", ".join(name for name in serving(role.use) if STRATEGIES[name].is_implemented)
        yield Problem(f"{key} is missing. Strategies that can run {role.name}: {choices}.", (key,))
        return
    spec = STRATEGIES.get(worker.strategy_name)
    if spec is None:
        yield unknown_strategy(key, worker.strategy_name)
        return
    if role.use not in spec.uses:
        yield Problem(
            f"{key}: {spec.name} cannot run {role.name}, which {TASKS[role.use]}. Strategies that can: "
            f"{', '.join(serving(role.use))}.",
            (key,),
        )
    if worker.num_gpus_per_worker > 1 and not spec.devices_per_worker:
        yield Problem(
            f"{role.name}.num_gpus_per_worker: {worker.num_gpus_per_worker} with {spec.name}, which uses one device "
            "per worker. Remove it; several devices per worker are for "
            f"{', '.join(n for n, s in STRATEGIES.items() if s.devices_per_worker)}.",
            (f"{role.name}.num_gpus_per_worker", key),
        )
    if role.use == "generate" and spec.name in _ENGINE_ARGUMENTS:
        yield from _ENGINE_ARGUMENTS[spec.name](role.name, worker)
    if worker.use_sequence_packing and not spec.packs:
        instead = [name for name in serving(role.use) if STRATEGIES[name].packs]
        way_out = f"Use {' or '.join(instead)}, or set it to false" if instead else "Set it to false"
        if role.use != "generate":
            where = "train" if role.learns else "infer"
            way_out += f"; use_dynamic_batching_in_{where} keeps padding small"
        yield Problem(
            f"{role.name}.use_sequence_packing: true with {spec.name}, which does not pack rows. {way_out}.",
            (f"{role.name}.use_sequence_packing", key),
        )


def unknown_strategy(key: str, name: str) -> Problem:
    match = nearest(name, STRATEGIES)
    hint = f"Did you mean {match}? " if match else ""
    return Problem(f"{key}: unknown strategy {name!r}. {hint}Known: {', '.join(STRATEGIES)}.", (key,))


def engine_problems(role: Role, worker: WorkerConfig) -> Iterator[Problem]:
    """What keeps a strategy from starting on this machine: not written yet, or a package that is not installed."""
    spec = STRATEGIES.get(worker.strategy_name or "")
    if spec is None:
        return
    key = f"{role.name}.strategy_args.strategy_name"
    if not spec.is_implemented:
        ready = ", ".join(name for name in serving(role.use) if STRATEGIES[name].is_implemented)
        yield Problem(
            f"{key}: {spec.name} is not implemented yet. Strategies that can run {role.name} today: {ready}.", (key,)
        )
        return
    for package in spec.packages:
        if not is_installed(package.module):
            yield Problem(
                f"{key}: {spec.name} needs the package {package.module}, which is not installed. Install it: "
                f"{package.install}",
                (key,),
            )
    if spec.packages is MEGATRON and not list(megatron_problems(key, worker.strategy_config)):
        at = f"{role.name}.strategy_args.strategy_config"
        yield from missing_packages(at, split_settings(worker.strategy_config)[0])
