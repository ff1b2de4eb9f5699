"""What can be wrong with the environments of a configuration: their types, patterns and templates."""

from collections.abc import Iterator, Mapping, Sequence

import regex

from roll.configs.problems import Problem, did_you_mean
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.agentic.env.build import import_problems
from roll.pipeline.agentic.env.table import ADAPTERS, ENVIRONMENTS, NOT_HERE, gem_id
from roll.pipeline.agentic.env_config import AGENT_NATIVE, MANAGERS, STEP, STEP_CONCAT, EnvConfig
from roll.pipeline.agentic.env_manager_config import EnvManagerConfig
from roll.pipeline.agentic.templates import OBSERVATIONS, STEP_FIELDS, TRAJECTORY_FIELDS, fields_of
from roll.pipeline.agentic.tools.table import NOT_HERE as TOOLS_NOT_HERE
from roll.pipeline.agentic.tools.table import TOOLS
from roll.utils.imports import split
from roll.utils.text import show

OTHER_MANAGERS: Mapping[str, str] = {
    "VLTrajEnvManager": ": it shows pictures, which are not read yet; in words trajectory does the same, with the same "
    "pre_step_template and next_step_template",
    "ProxyEnvManager": ": it answers programs that ask over HTTP; what its GEMRunner plays, trajectory plays, and "
    "agent_native plays an environment that keeps its conversation itself",
}
"""Why ROLL's other env managers are not here, and what is."""
STEP_TEMPLATES = ("pre_step_template", "next_step_template")
UNREAD_BY_NATIVE = (
    "agent_system_template",
    "agent_template",
    *STEP_TEMPLATES,
    "action_pattern",
    "history_length",
    "env_instruction",
)


def managers(config: AgenticConfig) -> Iterator[tuple[str, EnvManagerConfig]]:
    yield "train_env_manager", config.train_env_manager
    yield from ((validated.at, validated.manager) for validated in config.validated)


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
        yield from _tool_problems(at, env)


def _type_problems(at: str, env: EnvConfig) -> Iterator[Problem]:
    key = f"{at}.env_type"
    if env.env_manager_cls not in MANAGERS:
        why = OTHER_MANAGERS.get(env.env_manager_cls.rpartition(".")[2], "")
        yield Problem(
            f"{at}.env_manager_cls: {env.env_manager_cls} has no counterpart here{why}. Choose {', '.join(MANAGERS)}.",
            (f"{at}.env_manager_cls",),
        )
    if is_plain(env):
        yield from import_problems(at, env)
    if env.env_type in ENVIRONMENTS or gem_id(env.env_type) is not None:
        return
    if env.env_type in NOT_HERE:
        yield Problem(
            f"{key}: ROLL's {env.env_type} {NOT_HERE[env.env_type]}. Shipped: {', '.join(ENVIRONMENTS)}.", (key,)
        )
        return
    try:
        split(env.env_type, ENVIRONMENTS)
    except ImportError as error:
        yield Problem(f"{key}: {error}.{did_you_mean(env.env_type, ENVIRONMENTS)}", (key,))


def _tool_problems(at: str, env: EnvConfig) -> Iterator[Problem]:
    if env.tool_wrapper is None:
        return
    at = f"{at}.tool_wrapper"
    if env.env_manager_cls == AGENT_NATIVE:
        yield Problem(
            f"{at}: with {AGENT_NATIVE} the environment has the tools itself, in its conversation(). Remove it, or "
            "choose another env_manager_cls.",
            (at,),
        )
    if not env.tool_wrapper.tool_configs:
        yield Problem(f"{at}.tool_configs is empty: name tools ({', '.join(TOOLS)}).", (f"{at}.tool_configs",))
    for i, tool in enumerate(env.tool_wrapper.tool_configs):
        key = f"{at}.tool_configs[{i}].tool_id"
        if tool.tool_id in TOOLS_NOT_HERE:
            yield Problem(f"{key}: ROLL's {tool.tool_id} {TOOLS_NOT_HERE[tool.tool_id]}.", (f"{at}.tool_configs",))
        elif tool.tool_id not in TOOLS:
            try:
                split(tool.tool_id, TOOLS)
            except ImportError as error:
                yield Problem(f"{key}: {error}.{did_you_mean(tool.tool_id, TOOLS)}", (f"{at}.tool_configs",))


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
    if env.env_manager_cls == AGENT_NATIVE:  # the words are the environment's
        return
    known = STEP_FIELDS if env.env_manager_cls in (STEP, STEP_CONCAT) else TRAJECTORY_FIELDS
    parts = {f"{at}.{name}": getattr(env, name) for name in STEP_TEMPLATES if getattr(env, name) is not None}
    if parts and "agent_template" in env.model_fields_set:
        yield Problem(
            f"{at}: agent_template and {' and '.join(key.rpartition('.')[2] for key in parts)} both say what the user "
            "message is. Keep one.",
            (f"{at}.agent_template", *parts),
        )
        return
    templates = parts or {f"{at}.agent_template": env.agent_template}
    faults = [fault for key, text in templates.items() for fault in _field_problems(at, key, text, env, known)]
    yield from faults
    if faults:
        return
    names = fields_of(env.template)
    key = next(iter(templates))
    if not set(OBSERVATIONS) & set(names):
        yield Problem(f"{key} has no {{observation}}: the policy would not see where it is.", (key,))


def _names(env: EnvConfig) -> Sequence[str]:
    try:
        return fields_of(env.template)
    except ValueError:
        return ()  # told as a problem


def _field_problems(at: str, key: str, text: str, env: EnvConfig, known: Sequence[str]) -> Iterator[Problem]:
    try:
        names = fields_of(text)
    except ValueError as error:
        yield Problem(f"{key}: {error}.", (key,))
        return
    kind = "step samples" if env.is_per_turn else "trajectories"
    for name in dict.fromkeys(names):
        if name not in known:
            yield Problem(
                f"{key}: unknown field {{{name}}}.{did_you_mean(name, known)} Fields of {kind}: {', '.join(known)}.",
                (key, f"{at}.env_manager_cls"),
            )


def env_warnings(config: AgenticConfig) -> Iterator[str]:
    """Keys that an agent_native environment leaves unread, and a history that is not shown."""
    for tag, env in played(config).items():
        if env.env_manager_cls == STEP_CONCAT and "history" not in _names(env):
            yield (
                f"custom_envs.{tag}.agent_template has no {{history}}: the policy sees the observation of its turn "
                f"alone, as with env_manager_cls: {STEP}. Add it, if earlier ones are to be shown."
            )
        given = [key for key in UNREAD_BY_NATIVE if key in env.model_fields_set and getattr(env, key) is not None]
        if env.env_manager_cls == AGENT_NATIVE and given:
            yield (
                f"custom_envs.{tag}: {', '.join(given)} {'do' if len(given) > 1 else 'does'} nothing with "
                f"{AGENT_NATIVE}: the environment chooses the words, and gets whole answers."
            )
