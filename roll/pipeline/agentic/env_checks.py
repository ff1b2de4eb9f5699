"""Checks of the environments of a configuration: their types, patterns and templates."""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import regex

from roll.configs.checks.pictures import picture_problems
from roll.configs.problems import Problem, did_you_mean
from roll.datasets.sources import names_data_set
from roll.envs.config import (
    AGENT_NATIVE,
    IN_SESSIONS,
    MANAGERS,
    OBSERVATIONS,
    PROXY,
    STEP,
    STEP_CONCAT,
    STEP_FIELDS,
    TOOL_LOOP,
    TRAJECTORY_FIELDS,
    VL_TRAJECTORY,
    EnvConfig,
    fields_of,
)
from roll.envs.table import ENVIRONMENTS, NOT_HERE, TOOLS, TOOLS_NOT_HERE, gem_id
from roll.pipeline.agentic.agentic_config import AgenticConfig, EnvManagerConfig
from roll.pipeline.agentic.tool_checks import (
    TOOL_KEYS,
    code_path_problems,
    command_problems,
    path_problems,
    tool_loop_problems,
)
from roll.utils.files import expanded, path_info
from roll.utils.imports import SCRIPT_MODULE, is_installed, place_on_path, split
from roll.utils.sandbox.backends import SandboxUnavailable, find_means
from roll.utils.text import show

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SANDBOX_KEYS = ("agent_files", "agent_truths")
READERS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("agent", "agent_command", "sandbox", *SANDBOX_KEYS, "sides"), (PROXY,)),
    **dict.fromkeys(TOOL_KEYS, (TOOL_LOOP,)),
    "tasks": (PROXY, TOOL_LOOP),
}
"""Keys that some env managers alone read."""
_SIDE = re.compile(r"[A-Za-z0-9_-]+")
STEP_TEMPLATES = ("pre_step_template", "next_step_template")
UNREAD_BY_NATIVE = (
    "agent_system_template",
    "agent_template",
    *STEP_TEMPLATES,
    "action_pattern",
    "history_length",
    "env_instruction",
)
UNREAD: Mapping[str, Sequence[str]] = {
    AGENT_NATIVE: UNREAD_BY_NATIVE,
    PROXY: (*UNREAD_BY_NATIVE, "format_penalty", "max_env_step_concurrent"),
    TOOL_LOOP: (*UNREAD_BY_NATIVE[1:], "format_penalty"),
}
"""Keys of other env managers, as a YAML may hold them for all, that do nothing with one."""


def managers(config: AgenticConfig) -> Iterator[tuple[str, EnvManagerConfig]]:
    yield "train_env_manager", config.train_env_manager
    yield from ((validated.at, validated.manager) for validated in config.validated)


def played(config: AgenticConfig) -> dict[str, EnvConfig]:
    """The environments that some env manager plays, by tag; unknown tags are left out."""
    tags = dict.fromkeys(tag for _, manager in managers(config) for tag in manager.tags)
    return {tag: config.custom_envs[tag] for tag in tags if tag in config.custom_envs}


def has_outside_programs(config: AgenticConfig) -> bool:
    return any(env.is_played_outside for env in played(config).values())


def hub_set(env: EnvConfig) -> str | None:
    """The data set of the Hugging Face hub that a shipped environment takes its questions from; building it loads
    them."""
    name = env.env_config.get("dataset_name")
    if env.env_type not in ENVIRONMENTS or not isinstance(name, str) or path_info(name).is_file:
        return None
    return name if names_data_set(name) else None


def shows_pictures(config: AgenticConfig, managers: Collection[str] = (VL_TRAJECTORY,)) -> str | None:
    """Return the key of the first environment that may show pictures; None if no env manager takes any."""
    tags = (tag for tag, env in played(config).items() if env.env_manager_cls in managers)
    tag = next(tags, None)
    return None if tag is None else f"custom_envs.{tag}.env_manager_cls"


def blind_problem(key: str, config: AgenticConfig) -> str:
    """Return the sentence for a policy that does not see what the environment of `key` shows."""
    name = config.actor_train.model_args.model_name_or_path
    return (
        f"{key}: {VL_TRAJECTORY} shows pictures, and {name} takes text alone. Take a vision model "
        "(docs/pictures.md), or set it to trajectory, with env_config: {render_mode: text}"
    )


def env_problems(config: AgenticConfig) -> Iterator[Problem]:
    yield from _listen_problems(config)
    if (key := shows_pictures(config)) is not None:
        for text in picture_problems(config, "actor_train", key):
            yield Problem(f"{text.removesuffix('.')}.", (key,))
    for tag, env in played(config).items():
        at, manager = f"custom_envs.{tag}", env.env_manager_cls
        if manager not in MANAGERS:
            key = f"{at}.env_manager_cls"
            hint = did_you_mean(manager, MANAGERS)
            yield Problem(f"{key}: {manager} is not supported.{hint} Choose {', '.join(MANAGERS)}.", (key, at))
            continue
        yield from _unread_problems(at, env)
        if env.is_session:
            if manager == PROXY:
                yield from _program_problems(at, env, config.agent_endpoint.listen)
            else:
                yield from tool_loop_problems(at, env)
            if env.tasks is not None and ":" in env.tasks and not env.tasks.endswith((".json", ".jsonl")):
                yield from path_problems(f"{at}.tasks", env.tasks, "name")
            continue
        yield from _type_problems(at, env)
        yield from _pattern_problems(at, env)
        yield from _template_problems(at, env)
        yield from _tool_problems(at, env)


def _unread_problems(at: str, env: EnvConfig) -> Iterator[Problem]:
    manager = env.env_manager_cls
    unread = [key for key, readers in READERS.items() if manager not in readers and env.is_changed(key)]
    if env.is_session:  # it brings its world and its tools itself
        unread += ["env_type"] if env.env_type != IN_SESSIONS[manager] else []
        unread += ["env_config"] if env.env_config and env.agent is None and env.tool_class is None else []
    if env.tool_wrapper is not None and (env.is_session or manager == AGENT_NATIVE):
        unread.append("tool_wrapper")
    for key in unread:
        other = f"Set that to {' or '.join(READERS[key])}, or remove the key." if key in READERS else "Remove it."
        keys = (f"{at}.{key}", f"{at}.env_manager_cls")
        yield Problem(f"{keys[0]} does nothing with {keys[1]}: {manager}. {other}", keys)


def _listen_problems(config: AgenticConfig) -> Iterator[Problem]:
    key, listen = "agent_endpoint.listen", config.agent_endpoint.listen
    if listen is None:
        return
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        yield Problem(f"{key}: {show(listen)} is not host:port. Write for example 127.0.0.1:8900.", (key,))
    elif config.num_nodes > 1 and config.agent_endpoint.host in LOOPBACK and has_outside_programs(config):
        yield Problem(
            f"{key}: {listen} is reached from one machine alone, and workers on {config.num_nodes} (num_nodes) hand "
            f"out their sessions there. Write 0.0.0.0:{port}, or the address of this machine in their network.",
            (key, "num_nodes"),
        )


def _program_problems(at: str, env: EnvConfig, listen: str | None) -> Iterator[Problem]:
    manager = f"{at}.env_manager_cls"
    if env.agent is not None and env.agent_command is not None:
        yield Problem(
            f"{at}.agent and {at}.agent_command both name the program for {manager}: {PROXY}. Keep one of them.",
            (f"{at}.agent", f"{at}.agent_command"),
        )
    if env.sandbox and env.agent_command is None:
        yield Problem(
            f"{at}.sandbox: only a program that {at}.agent_command starts runs in a sandbox. Write the command, for "
            "example python agent.py, or remove sandbox.",
            (f"{at}.sandbox", f"{at}.agent"),
        )
    if not env.sandbox and (unread := next(filter(lambda key: getattr(env, key), SANDBOX_KEYS), None)):
        yield Problem(
            f"{at}.{unread} is for programs in a sandbox. Set {at}.sandbox: true, or remove it.", (f"{at}.{unread}",)
        )
    if env.is_played_outside and listen is None:
        yield Problem(
            f"{at}.agent and {at}.agent_command are missing, and {manager}: {PROXY} needs a program. Set one of them, "
            "for example agent: my_agent:play. If the programs run elsewhere, set agent_endpoint.listen, for example "
            "127.0.0.1:8900.",
            (f"{at}.agent", f"{at}.agent_command"),
        )
    if len(set(env.sides)) != len(env.sides) or len(env.sides) == 1 or not all(map(_SIDE.fullmatch, env.sides)):
        yield Problem(
            f"{at}.sides: {show(list(env.sides))} are not two or more different names of letters, digits, - and _. "
            "Write for example [white, black].",
            (f"{at}.sides",),
        )
    if env.agent is not None:
        yield from path_problems(f"{at}.agent", env.agent, "function")
    if env.agent is not None and env.agent.startswith(f"{SCRIPT_MODULE}:"):
        name = env.agent.removeprefix(f"{SCRIPT_MODULE}:")
        yield Problem(
            f"{at}.agent: {name} is defined in this script, and the processes that play episodes import their program "
            f"from a file. Move it into a file beside the script, for example my_agent.py, and set agent to "
            f"my_agent:{name}.",
            (f"{at}.agent",),
        )


def program_problems(at: str, env: EnvConfig) -> Iterator[Problem]:
    """Yield what a program needs of the machine: packages, and its module, which is imported."""
    if not all(map(is_installed, ("fastapi", "uvicorn", "httptools", "httpx"))):
        key = f"{at}.env_manager_cls"
        text = f"{key}: {PROXY} needs FastAPI and others. Run pip install -e '.[agents]' in the checkout."
        yield Problem(text, (key,), "machine")
    if env.sandbox:
        try:
            find_means(has_door=True)
        except SandboxUnavailable as error:
            yield Problem(f"{at}.sandbox: {error}.", (f"{at}.sandbox",), "machine")
        if absent := [file for file in env.agent_files if not Path(place_on_path(file)).exists()]:
            yield Problem(f"{at}.agent_files: there is no {absent[0]}.", (f"{at}.agent_files",))
    if env.agent_command is not None:
        yield from command_problems(f"{at}.agent_command", shlex.split(env.agent_command))
    if env.agent is not None:
        yield from code_path_problems(f"{at}.agent", env.agent)


def task_place_problems(at: str, env: EnvConfig) -> Iterator[Problem]:
    """Whether the tasks of programs and tools are here. Only code that is named as tasks is imported."""
    if env.tasks is None:
        return
    is_file = env.tasks.endswith((".json", ".jsonl"))
    if not is_file and ":" in env.tasks:
        yield from code_path_problems(f"{at}.tasks", env.tasks)
    elif not (expanded(env.tasks).is_file() if is_file else expanded(env.tasks).is_dir()):
        what = "file" if is_file else "folder of Harbor tasks"
        yield Problem(f"{at}.tasks: there is no {what} {env.tasks}.", (f"{at}.tasks",), "place")


def _type_problems(at: str, env: EnvConfig) -> Iterator[Problem]:
    key = f"{at}.env_type"
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
        yield Problem(f"{key}: {show(env.action_pattern)} is not a regular expression: {error}.", (key,))
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
    parts = [name for name in STEP_TEMPLATES if getattr(env, name) is not None]
    if parts and "agent_template" in env.model_fields_set:
        text = f"{at}: agent_template and {' and '.join(parts)} both set the user message. Keep one."
        yield Problem(text, (f"{at}.agent_template", *(f"{at}.{name}" for name in parts)))
        return
    has_fault = False
    for name in parts or ("agent_template",):
        key = f"{at}.{name}"
        try:
            unknown = next((field for field in fields_of(getattr(env, name)) if field not in known), None)
        except ValueError as error:
            has_fault = True
            yield Problem(f"{key}: {error}.", (key,))
            continue
        if unknown is not None:
            has_fault = True
            kind, nearest = "step samples" if env.is_per_turn else "trajectories", did_you_mean(unknown, known)
            text = f"{key}: unknown field {{{unknown}}}.{nearest} Fields of {kind}: {', '.join(known)}."
            yield Problem(text, (key, f"{at}.env_manager_cls"))
    if not has_fault and not set(OBSERVATIONS) & set(fields_of(env.template)):
        key = f"{at}.{(*parts, 'agent_template')[0]}"
        yield Problem(f"{key} has no {{observation}}: the policy would not see the environment's state.", (key,))


def _shows_instruction(env: EnvConfig) -> bool:
    try:
        return "env_instruction" in fields_of(env.template)
    except ValueError:
        return False  # told as a problem


def env_warnings(config: AgenticConfig) -> Iterator[str]:
    """Keys that an env manager leaves unread, and who plays programs."""
    endpoint = config.agent_endpoint
    if endpoint.listen is not None and not has_outside_programs(config):
        yield f"agent_endpoint.listen: {endpoint.listen} does nothing: programs of this run are started by it."
    elif endpoint.listen is not None and endpoint.host not in LOOPBACK:
        yield (
            f"agent_endpoint.listen: {endpoint.listen} may be reached from other machines, without encryption. Whoever "
            "has a key of a session or the run's token can use it."
        )
    for tag, env in played(config).items():
        if env.env_instruction and env.env_manager_cls not in UNREAD and not _shows_instruction(env):
            yield (
                f"custom_envs.{tag}.env_instruction is not shown: agent_template has no {{env_instruction}}. Write "
                'agent_template: "{env_instruction} {observation}", or with words of your own.'
            )
        unread = (key for key in UNREAD.get(env.env_manager_cls, ()) if key in env.model_fields_set)
        if names := [key for key in unread if getattr(env, key) is not None]:
            verb = "do" if len(names) > 1 else "does"
            yield f"custom_envs.{tag}: {', '.join(names)} {verb} nothing with {env.env_manager_cls}."
        if env.is_played_outside:
            yield (
                f"custom_envs.{tag}: a step waits until programs have taken its sessions (POST /sessions at "
                f"{endpoint.listen}) and given their rewards."
            )
        elif env.env_manager_cls == PROXY and not env.sandbox:
            yield (
                f"custom_envs.{tag}: the program runs with the rights of this run, without a sandbox. Use programs and "
                "models that you trust, or agent_command with sandbox: true."
            )
