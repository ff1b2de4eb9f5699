"""What can be wrong with the environments of a configuration: their types, patterns and templates."""

from collections.abc import Iterator

import regex

from roll.configs.problems import Problem, did_you_mean, show
from roll.pipeline.agentic.agentic_config import STEP, TRAJECTORY, AgenticConfig, EnvConfig, EnvManagerConfig
from roll.pipeline.agentic.env.build import import_problems
from roll.pipeline.agentic.env.table import ADAPTERS, ENVIRONMENTS, NOT_HERE
from roll.pipeline.agentic.templates import OBSERVATIONS, STEP_FIELDS, TRAJECTORY_FIELDS, fields_of
from roll.utils.imports import split


def managers(config: AgenticConfig) -> Iterator[tuple[str, EnvManagerConfig]]:
    yield "train_env_manager", config.train_env_manager
    if config.val_env_manager is not None:
        yield "val_env_manager", config.val_env_manager


def played(config: AgenticConfig) -> dict[str, EnvConfig]:
    """The environments that some env manager plays, by tag; unknown tags are left out."""
    tags = dict.fromkeys(tag for _, manager in managers(config) for tag in manager.tags)
    return {tag: config.custom_envs[tag] for tag in tags if tag in config.custom_envs}


def is_plain(env: EnvConfig) -> bool:
    """A shipped environment of plain Python: building one asks nothing of the machine."""
    return env.env_type in ENVIRONMENTS and env.env_type not in ADAPTERS


def env_problems(config: AgenticConfig) -> Iterator[Problem]:
    for tag, env in played(config).items():
        at = f"custom_envs.{tag}"
        yield from _type_problems(at, env)
        yield from _pattern_problems(at, env)
        yield from _template_problems(at, env)


def _type_problems(at: str, env: EnvConfig) -> Iterator[Problem]:
    key = f"{at}.env_type"
    if env.env_manager_cls not in (TRAJECTORY, STEP):
        yield Problem(
            f"{at}.env_manager_cls: {env.env_manager_cls} has no counterpart here. Choose {TRAJECTORY} or {STEP}.",
            (f"{at}.env_manager_cls",),
        )
    if is_plain(env):
        for text in import_problems(at, env):
            yield Problem(text, (f"{at}.env_config",))
    if env.env_type in ENVIRONMENTS:
        return
    if env.env_type in NOT_HERE:
        yield Problem(
            f"{key}: ROLL's {env.env_type} has no counterpart here yet. Shipped: {', '.join(ENVIRONMENTS)}; or name a "
            "class of your own as package.module:Class.",
            (key,),
        )
        return
    try:
        split(env.env_type, ENVIRONMENTS)
    except ImportError as error:
        hint = did_you_mean(env.env_type, ENVIRONMENTS)
        if ":" in env.env_type:
            hint = f" An id of GEM's goes under env_type: gem, as env_config: {{env: {env.env_type}, kwargs: {{...}}}}."
        yield Problem(f"{key}: {error}.{hint}", (key,))


def _pattern_problems(at: str, env: EnvConfig) -> Iterator[Problem]:
    key = f"{at}.action_pattern"
    try:
        pattern = regex.compile(env.action_pattern, regex.DOTALL)
    except regex.error as error:
        yield Problem(f"{key}: {show(env.action_pattern)} is no regular expression: {error}.", (key,))
        return
    if pattern.groups < 1:
        yield Problem(
            f"{key}: {show(env.action_pattern)} has no group (...) that would hold the action. Write for example "
            "<answer>(.*?)</answer>.",
            (key,),
        )


def _template_problems(at: str, env: EnvConfig) -> Iterator[Problem]:
    known = STEP_FIELDS if env.env_manager_cls == STEP else TRAJECTORY_FIELDS
    key = f"{at}.agent_template"
    try:
        names = fields_of(env.agent_template)
    except ValueError as error:
        yield Problem(f"{key}: {error}.", (key,))
        return
    for name in dict.fromkeys(names):
        if name not in known:
            kind = "step samples" if env.env_manager_cls == STEP else "trajectories"
            yield Problem(
                f"{key}: unknown field {{{name}}}.{did_you_mean(name, known)} Fields of {kind}: {', '.join(known)}.",
                (key, f"{at}.env_manager_cls"),
            )
    if set(names) <= set(known) and not set(OBSERVATIONS) & set(names):
        yield Problem(f"{key} has no {{observation}}: the policy would not see where it is.", (key,))
