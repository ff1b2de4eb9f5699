"""A YAML becomes a checked configuration with its plan, or a ConfigError with everything that is wrong."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.configs.checks.roles import run_problems, run_warnings
from roll.configs.load.chosen_values import Chosen, KeysInYaml, Machine, with_chosen
from roll.configs.load.defaults import with_epochs
from roll.configs.load.known_keys import known_keys
from roll.configs.load.loader import Composed, load_tree
from roll.configs.load.overruled_keys import overruled
from roll.configs.load.validate import Checked, validate
from roll.configs.plan.describe import describe
from roll.configs.plan.run_plan import RunPlan
from roll.configs.problems import Problem, nearest
from roll.configs.sections.data import DataArgs
from roll.configs.sections.run import RunConfig
from roll.errors import ConfigError
from roll.platforms.table import CUDA, PLATFORMS
from roll.run.kind import other_kind
from roll.run.saving.model_files import read_model_config
from roll.run.spec import PipelineSpec
from roll.run.start.data_files import data_args_warnings
from roll.run.start.machine import machine_of
from roll.run.start.preflight import role_strategy_problems, role_strategy_warnings

MODEL_KEYS = frozenset({"pretrain", "reward_pretrain", "model_name_or_path", "tokenizer_path"})


@dataclass(frozen=True)
class Loaded:
    """A configuration without contradictions, of the pipeline's own class. `keys_in_yaml`: the keys that its YAML says.
    `chosen`: what roll chose for others, by the machine, the model and the sizes of the run."""

    config: RunConfig
    plan: RunPlan
    warnings: tuple[str, ...]
    keys_in_yaml: KeysInYaml = frozenset()
    chosen: tuple[Chosen, ...] = ()


def plan_text(spec: PipelineSpec, loaded: Loaded) -> str:
    """The plan in words, with what the run learns by and what roll chose, as `roll plan` prints it."""
    config, plan = loaded.config, loaded.plan
    learning = spec.algorithm_rows(config, plan, loaded.keys_in_yaml)
    found = {role: read_model_config(worker.model_args)[0] for role, worker in config.model_roles.items()}
    models = {role: model for role, model in found.items() if model is not None}
    return describe(config, plan, spec.batch_rows(config, plan), learning, loaded.chosen, models)


def platform_choice(config: RunConfig, machine: Machine) -> list[Chosen]:
    """The platform of a machine with other devices than NVIDIA's: the plan has to know what they lack."""
    if config.platform != "auto" or not machine.num_gpus or machine.platform == CUDA.name:
        return []
    platform = PLATFORMS[machine.platform]
    return [Chosen("platform", platform.name, f"this process sees {machine.num_gpus} {platform.devices} of it")]


def choose(spec: PipelineSpec, checked: Checked[RunConfig]) -> tuple[RunConfig | None, tuple[Chosen, ...]]:
    """The settings with what is chosen for keys that their tree leaves out, and these choices. Without settings that
    can be built there are none. Each round of `spec.defaults` sees what the rounds before it chose."""
    config, chosen = checked.config, list[Chosen]()
    if config is None:
        return None, ()
    user_keys, machine = checked.keys_in_yaml, machine_of(config)
    for hooks in ((), *spec.defaults):
        choices = spec.choices(hooks, config, user_keys, machine) if hooks else platform_choice(config, machine)
        sound = [choice for choice in choices if choice.key not in checked.broken]
        made = validate(type(config), with_chosen(checked.tree, [*chosen, *sound])).config if sound else None
        if made is not None:
            config, chosen = made, [*chosen, *sound]
    return config, tuple(chosen)


def load(spec: PipelineSpec, directory: Path, name: str, overrides: Sequence[str] = ()) -> Loaded:
    """Composes, checks and plans. Looks at nothing but the YAML, its fragments, and the module of an estimator or a
    loss of the user's own: the plan depends on it; and where the YAML leaves out devices, backends or lengths, at this
    machine and the model's config.json."""
    return check(spec, load_tree(directory, name, overrides, spec.config_class()))


def with_gguf_folders(tree: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """Return the settings with a folder in place of each GGUF file that is named as a model or a tokenizer. Raises
    ConfigError for a file that is missing or cannot be read as a model."""
    return {key: _with_folder(f"{section}{key}", value) for key, value in tree.items()}


def _with_folder(path: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return with_gguf_folders(value, f"{path}.")
    if path.rpartition(".")[2] in MODEL_KEYS and isinstance(value, str) and value.endswith(".gguf"):
        from roll.run.start.gguf import gguf_folder

        try:
            return gguf_folder(value)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
    return value


Beside = Callable[[RunConfig], Iterable[Problem]]


def check(spec: PipelineSpec, composed: Composed, beside: Beside | None = None) -> Loaded:
    """Checks and plans what is composed already. `beside`: what else to say where something is wrong, of the settings
    that are sound; without anything wrong it is not asked."""
    cls = spec.config_class()
    settings = with_gguf_folders(composed.settings)
    settings = with_epochs(settings, cls.role_table) if cls.has_rows else settings
    read = overruled(settings, cls.role_table)
    checked = validate(cls, {**settings, **read.changed})
    config, chosen = choose(spec, checked)
    problems = [*checked.problems, *checked.about_sound_keys(read.problems)]
    if config is not None:
        later = [*other_kind(spec, config), *run_problems(config), *role_strategy_problems(config)]
        later += spec.hook_findings(spec.problems, Problem, config)
        problems += checked.about_sound_keys(later)
    if problems and config is not None and beside is not None:
        reported_keys = {problem.keys[0] for problem in problems if problem.keys}
        more = checked.about_sound_keys(beside(config))
        problems += [each for each in more if not each.keys or each.keys[0] not in reported_keys]
    if problems:
        raise ConfigError(*dict.fromkeys(problem.text for problem in problems))
    assert config is not None
    plan = spec.make_plan(config)
    warnings = [*read.warnings, *checked.warnings, *run_warnings(config, plan)]
    warnings += role_strategy_warnings(config)
    warnings += spec.hook_findings(spec.warnings, str, config)
    if composed.of_roll:
        warnings.append(f"Written for ROLL, so its defaults are ROLL's: {composed.of_roll}. Others: defaults_of: here.")
    for key in composed.unused:
        match = nearest(key, known_keys(cls), cutoff=0.8)
        if match and match not in composed.settings:
            warnings.append(f"{key} comes from a fragment and nothing uses it. Did you mean {match}?")
    return Loaded(config, plan, tuple(dict.fromkeys(warnings)), checked.keys_in_yaml, chosen)


def unread_keys(places: Mapping[str, DataArgs], instead: str, *more: str) -> Iterator[str]:
    """Keys of data_args, by their YAML path, that are given without effect to a run on rows. `instead`: the keys that
    name the columns."""
    for at, args in places.items():
        for key in ("prompt", "tag", "ground_truth", "tools", "domain_interleave_probs", *more):
            if args.is_changed(key):
                yield f"{at}.{key} does nothing here: {instead} name the columns."
    yield from data_args_warnings(places)
