"""Checks of the strategy that a role names, against the table of strategies or its own spec."""

from collections.abc import Iterator

from roll.configs.base import Settings
from roll.configs.checks.platforms import platform_problems
from roll.configs.checks.training import conflict_problems, fused_head_problems
from roll.configs.load.validate import validate
from roll.configs.problems import Problem, nearest
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import FEATURES, Feature
from roll.configs.strategies.spec import StrategySpec
from roll.configs.strategies.table import STRATEGIES, feature_problem, load_spec, spec_of
from roll.configs.tables.roles import TASKS, Use
from roll.utils.imports import is_installed, resolve, split
from roll.utils.text import show


def serving(use: Use) -> list[str]:
    """Names of the strategies for roles of a use."""
    return [spec.name for spec in STRATEGIES.values() if use in spec.classes]


def strategy_problems(choice: Choice) -> Iterator[Problem]:
    """A missing or unknown strategy, one that cannot serve the role, devices it cannot use, and what the strategy
    itself says of its settings."""
    role, worker, key = choice.role, choice.worker, choice.name_key
    if worker.strategy_name is None:
        yield Problem(f"{key} is missing. Strategies that can run {role.name}: {', '.join(serving(role.use))}.", (key,))
        return
    try:
        spec = load_spec(worker.strategy_name)
    except KeyError:
        match = nearest(worker.strategy_name, STRATEGIES)
        hint = f"Did you mean {match}? " if match else ""
        known = ", ".join(STRATEGIES)
        yield Problem(f"{key}: unknown strategy {show(worker.strategy_name)}. {hint}Known: {known}.", (key,))
        return
    except ImportError as error:
        yield Problem(f"{key}: {error}. {_USER_STRATEGY}", (key,))
        return
    if wrong := broken_paths(spec):
        yield from (Problem(f"{key}: {spec.name}: {text}.", (key,)) for text in wrong)
        return
    yield from _ability_problems(choice, spec)
    if spec.settings:
        checked = validate(resolve(spec.settings), worker.strategy_config)  # type: ignore[arg-type]
        for problem in checked.problems:
            yield Problem(f"{choice.at}.{problem.text}", tuple(f"{choice.at}.{at}" for at in problem.keys))
    yield from spec.hook_findings(spec.problems, Problem, choice)


def _feature_problems(choice: Choice) -> Iterator[Problem]:
    """Yield the problems of keys that ask for what the strategy does not do."""
    worker, args, use = choice.worker, choice.worker.model_args, choice.role.use
    recomputes = args.recompute_granularity if "recompute_granularity" in args.model_fields_set else ""
    kernel = args.fused_kernel_options.impl_backend
    batching = f"use_dynamic_batching_in_{'train' if use == 'train' else 'infer'}"
    asked = {
        Feature.MULTI_DEVICE_WORKER: worker.num_gpus_per_worker if worker.num_gpus_per_worker > 1 else "",
        Feature.ACTIVATION_OFFLOAD: "true" if args.enable_activation_offload else "",
        Feature.SELECTIVE_RECOMPUTE: recomputes,
        Feature.SEQUENCE_PARALLEL: args.ulysses_size if args.ulysses_size > 1 else "",
        Feature.TORCH_COMPILE: "true" if worker.use_torch_compile else "",
        Feature.FUSED_HEAD: kernel if kernel not in ("torch", "liger") else "",
        Feature.SEQUENCE_PACKING: "true" if worker.use_sequence_packing else "",
    }
    remedies = {Feature.SEQUENCE_PACKING: f"set it to false; {batching} keeps padding small"}
    if spec_of(worker.strategy_name).sizes:
        remedies[Feature.SEQUENCE_PARALLEL] = "use the parallel sizes of strategy_config, or set it to 1"
    for feature, value in asked.items():
        if value and use in FEATURES[feature].uses:
            problem = feature_problem(choice, feature, str(value), remedy=remedies.get(feature, ""))
            yield from [problem] if problem else []


def _ability_problems(choice: Choice, spec: StrategySpec) -> Iterator[Problem]:
    role, key = choice.role, choice.name_key
    if role.use not in spec.classes:
        yield Problem(
            f"{key}: {spec.name} cannot run {role.name}, which {TASKS[role.use]}. Strategies that can: "
            f"{', '.join(serving(role.use))}.",
            (key,),
        )
    elif role.head not in spec.heads:
        others = (name for name in serving(role.use) if role.head in STRATEGIES[name].heads)
        yield Problem(
            f"{key}: {spec.name} has no model with a {role.head} head, which {role.name} needs. Strategies that have: "
            f"{', '.join(others) or 'none yet'}.",
            (key,),
        )
    yield from _feature_problems(choice)
    yield from platform_problems(choice)
    yield from fused_head_problems(choice) if role.use in ("train", "score") else ()
    yield from conflict_problems(choice) if role.learns else ()


def engine_problems(choice: Choice) -> Iterator[Problem]:
    """Yield what keeps a strategy from starting on this machine: a package that is not installed."""
    spec, key = spec_of(choice.worker.strategy_name), choice.name_key
    packages = (*spec.packages, *spec.packages_on.get(choice.platform, ()))
    for package in packages:
        if not is_installed(package.module):
            yield Problem(
                f"{key}: {spec.name} needs the package {package.module}, which is not installed. Install it: "
                f"{package.install}",
                (key,),
                "machine",
            )


def class_problems(choice: Choice) -> Iterator[Problem]:
    """Whether the class of a strategy that is none of the table's is there, and fills in what its use promises. Imports
    it, and torch."""
    spec, key, use = spec_of(choice.worker.strategy_name), choice.name_key, choice.role.use
    if is_built_in(spec) or use not in spec.classes:
        return
    from roll.distributed.strategy import base, generate_base  # torch

    promised = {"train": base.TrainStrategy, "score": base.ScoreStrategy, "generate": generate_base.GenerateStrategy}
    try:
        strategy_class = resolve(spec.classes[use])
    except ImportError as error:
        yield Problem(f"{key}: {spec.name}: classes[{use}]: {error}.", (key,))
        return
    at, wanted = f"{key}: {spec.name}: classes[{use}]: {spec.classes[use]}", promised[use]
    if not (isinstance(strategy_class, type) and issubclass(strategy_class, wanted)):
        yield Problem(f"{at} is not a class that extends {wanted.__name__} ({wanted.__module__}).", (key,))
    elif missing := sorted(strategy_class.__abstractmethods__):
        yield Problem(f"{at} does not have {', '.join(missing)}, which {wanted.__name__} promises.", (key,))


def is_built_in(spec: StrategySpec) -> bool:
    return STRATEGIES.get(spec.name) is spec


def broken_paths(spec: StrategySpec) -> list[str]:
    """Return the paths of a spec outside the table that lead nowhere. Its classes are looked for by
    `class_problems`."""
    if is_built_in(spec):
        return []
    hooks = ("settings", "problems", "warnings", "machine_problems", "model_problems", "sizes", "environment")
    paths = {name: vars(spec)[name] for name in (*hooks, "saved_facts")}
    paths |= {f"memory[{use}]": path for use, path in spec.memory.items()}
    problems = [] if spec.classes else ["classes is empty: it can do nothing"]
    for use, path in spec.classes.items():
        try:
            split(path)
        except ImportError as error:
            problems.append(f"classes[{use}]: {error}")
    for name, path in paths.items():
        try:
            leads_to = resolve(path) if path else None
        except ImportError as error:
            problems.append(f"{name}: {error}")
            continue
        if name == "settings" and path and not (isinstance(leads_to, type) and issubclass(leads_to, Settings)):
            problems.append(f"settings: {path} is not a class that extends Settings (roll.configs.base)")
    return problems


_USER_STRATEGY = "A strategy of your own is named package.module:SPEC (docs/adding_a_strategy.md)"
