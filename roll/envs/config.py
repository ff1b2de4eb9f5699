"""Settings of one environment, and of how it is talked to."""

from collections.abc import Mapping
from string import Formatter
from typing import Annotated, Any

from pydantic import BeforeValidator

from roll.configs.base import Settings, setting
from roll.envs.table import ASKS_ROWS, ENVIRONMENTS, default_pattern

# The user's prompt templates: which fields they may hold.

OBSERVATIONS: tuple[str, ...] = ("observation", "current_observation", "state")
"""Names of what is seen now: ROLL's two forms, and its older YAMLs, call it differently."""
TRAJECTORY_FIELDS: tuple[str, ...] = (
    "turn_idx",
    *OBSERVATIONS,
    "actions_left",
    "max_response_length",
    "env_instruction",
)
STEP_FIELDS: tuple[str, ...] = (
    *TRAJECTORY_FIELDS,
    "current_step",
    "step_count",
    "history",
    "history_length",
)


def fields_of(template: str) -> list[str]:
    """The names between braces. Raises ValueError if braces do not match, or hold more than a name.

    Example: "Turn {turn_idx}: {observation}" -> ["turn_idx", "observation"].
    """
    names: list[str] = []
    for _, name, spec, conversion in Formatter().parse(template):
        if name is None:
            continue
        if spec or conversion or not name.isidentifier():
            field = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise ValueError(f"{{{field}}} is not a plain field; write {{{{ and }}}} for literal braces")
        names.append(name)
    return names


def fill(template: str, values: Mapping[str, object]) -> str:
    """The template with its fields filled in: names only, no attribute or item is looked up."""
    parts: list[str] = []
    for text, name, _, _ in Formatter().parse(template):
        parts.append(text)
        if name is not None:
            parts.append(str(values[name]))
    return "".join(parts)


# `custom_envs.TAG.tool_wrapper`: tools that an answer may call instead of acting.


class ToolConfig(Settings):
    """One entry of `tool_configs`."""

    tool_id: str = setting(..., "calculator, search, python_code, or a tool of your own as package.module:Class.")
    tool_args: dict[str, Any] = setting({}, "Keyword arguments of the tool.")


class ToolWrapperArgs(Settings):
    """`tool_wrapper.wrapper_args`: how often tools may be called, and what a call earns."""

    max_tool_uses: int | None = setting(
        10, "Calls per episode; an answer after that is an action whatever it holds. null: any number.", ge=0
    )
    tool_reward: float = setting(0.0, "Added to the reward of a turn that calls a tool.")
    tool_success_reward: float = setting(0.0, "Added to it when the call came to something.")
    tool_execute_error_reward: float = setting(0.0, "Added to it when it did not.", le=0)


class ToolWrapperConfig(Settings):
    """`tool_wrapper` of an environment."""

    wrapper_args: ToolWrapperArgs = setting({}, "How often, and for what reward.")
    tool_configs: tuple[ToolConfig, ...] = setting((), "The tools.")


TRAJECTORY, STEP, STEP_CONCAT, AGENT_NATIVE = "trajectory", "step", "step_concat", "agent_native"
PROXY = "proxy"
MANAGERS = (TRAJECTORY, STEP, STEP_CONCAT, AGENT_NATIVE, PROXY)
PROGRAM = "program"  # the env_type of an entry with env_manager_cls: proxy, which has none
PER_TURN = (STEP, STEP_CONCAT, AGENT_NATIVE)
"""Those whose samples are single turns."""
ROLL_MANAGERS: Mapping[str, str] = {
    "roll.pipeline.agentic.env_manager.traj_env_manager.TrajEnvManager": TRAJECTORY,
    "roll.pipeline.agentic.env_manager.step_env_manager.StepEnvManager": STEP,
    "roll.pipeline.agentic.env_manager.step_concat_env_manager.StepConcatEnvManager": STEP_CONCAT,
    "roll.pipeline.agentic.env_manager.agent_native_env_manager.AgentNativeStepEnvManager": AGENT_NATIVE,
    "roll.pipeline.agentic.env_manager.proxy_env_manager.ProxyEnvManager": PROXY,
}
LIFTED = ("action_pattern", "format_penalty", "env_instruction")
"""Keys that ROLL users write into env_config and that the env manager, not the environment, needs here."""


class EnvConfig(Settings):
    """One entry of `custom_envs`: an environment under a tag, and how it is talked to."""

    env_type: str = setting(
        ...,
        f"The environment: {', '.join(ENVIRONMENTS)}; an id of GEM's, such as game:GuessTheNumber-v0; or a class of "
        "your own as package.module:Class.",
    )
    env_config: dict[str, Any] = setting({}, "Keyword arguments of the environment.")
    env_manager_cls: Annotated[str, BeforeValidator(lambda name: ROLL_MANAGERS.get(name, name))] = setting(
        TRAJECTORY,
        "trajectory: one sample per episode, the whole conversation. step: one sample per turn, whose prompt holds the "
        "last history_length turns. step_concat: the same with the observations of these turns alone, as they were. "
        "agent_native: one sample per turn, whose prompt is the conversation that the environment keeps itself; it "
        "gets whole answers, and no template is used. proxy: a program asks over HTTP, see agent. ROLL's class paths "
        "of the five are understood.",
    )
    agent: str | None = setting(
        None,
        "env_manager_cls: proxy: the function that plays an episode, module:function, called with a task and a session "
        "in a process of its own; it returns the reward, or a mapping with reward and metrics. Without agent and "
        "agent_command, programs from outside take the sessions: agent_endpoint. docs/agents.md.",
    )
    agent_command: str | None = setting(
        None,
        "env_manager_cls: proxy: the command that plays an episode, in place of agent. {base_url}, {api_key}, "
        "{anthropic_base_url}, {model}, {task_file} and {reward_file} are filled in.",
    )
    sandbox: bool = setting(
        False,
        "agent_command: each program runs in a sandbox of its own, which sees this Python, the system's programs and "
        "the folders of the files that the command names, writes to its own folder alone, and reaches the endpoint and "
        "nothing else.",
    )
    tasks: str | None = setting(
        None,
        "env_manager_cls: proxy: a file of JSON lines, or package.module:name of what has a length and items; an "
        "episode gets row env_seed modulo their number. None: a task holds its seed alone.",
    )
    max_steps: int = setting(10, "An episode is cut off after so many turns; with proxy, answers.", ge=1)
    max_tokens_per_step: int | None = setting(
        None, "Longest answer of a turn. Default: actor_infer.generating_args.max_new_tokens, else the room left.", ge=1
    )
    history_length: int = setting(5, "Turns shown again in the prompt of a step or step_concat sample.", ge=0)
    agent_system_template: str | None = setting(None, "System message.")
    agent_template: str = setting(
        "{observation}",
        "User message of every turn. Fields: {turn_idx}, {observation} (also {current_observation}, {state}), "
        "{actions_left}, {max_response_length}, {env_instruction}; for step samples also {current_step}, "
        "{step_count}, {history}, {history_length}.",
    )
    pre_step_template: str | None = setting(
        None, "With next_step_template in place of agent_template: what stands before the observation. Same fields."
    )
    next_step_template: str | None = setting(None, "What stands after the observation.")
    env_instruction: str | None = setting(None, "Text of {env_instruction}. Default: the environment's own.")
    action_pattern: str = setting(
        r"<answer>(.*?)</answer>",
        "Regular expression that finds the action in an answer: its last group. With thinking, for example "
        r"<think>(.*?)</think>\s*<answer>(.*?)</answer>. Default for roll_math and GEM: the whole answer; for roll_qa: "
        "what stands between the last tags.",
    )
    tool_wrapper: ToolWrapperConfig | None = setting(
        None, "Tools that an answer may call instead of acting; it gets the result and answers again."
    )
    format_penalty: float | None = setting(
        None, "Added to the reward of a turn without a valid action. Default: that of the env manager."
    )
    max_env_step_concurrent: int = setting(
        0,
        "Most calls into this tag's environments at once, per process; 1 for code that is not thread safe. 0: any.",
        ge=0,
    )

    @property
    def is_played_outside(self) -> bool:
        """Programs that the run does not start come for its sessions."""
        return self.env_manager_cls == PROXY and self.agent is None and self.agent_command is None

    @property
    def template(self) -> str:
        """The user message of every turn, whichever keys say it."""
        if self.pre_step_template is None and self.next_step_template is None:
            return self.agent_template
        before, after = self.pre_step_template or "", self.next_step_template or ""
        shown = set(OBSERVATIONS) & {*fields_of(before), *fields_of(after)}
        return before + ("" if shown else "{observation}") + after

    @property
    def asks_rows(self) -> bool:
        """True for a shipped environment that asks the rows of a data file: epochs of it can be counted."""
        return self.env_type in ASKS_ROWS

    @property
    def is_per_turn(self) -> bool:
        """One sample per turn, rather than one per episode."""
        return self.env_manager_cls in PER_TURN


def lifted(env: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the env manager that stand in env_config, where ROLL wants them; what stands outside wins."""
    name, env_type, env_config = env.get("env_manager_cls"), env.get("env_type"), env.get("env_config") or {}
    if not isinstance(env_config, Mapping):
        return dict(env)
    is_native = ROLL_MANAGERS.get(name, name) == AGENT_NATIVE if isinstance(name, str) else False
    keys = [key for key in LIFTED if not (is_native and key == "action_pattern")]  # the environment finds its actions
    inside = {key: env_config[key] for key in (*keys, "max_steps") if key in env_config}  # max_steps is for both
    rest = {key: value for key, value in env_config.items() if key not in keys}
    pattern = default_pattern(env_type, env_config) if isinstance(env_type, str) and not is_native else None
    if ROLL_MANAGERS.get(str(name), name) == PROXY:
        env = {"env_type": PROGRAM, **env}
    inside = ({} if pattern is None else {"action_pattern": pattern}) | inside
    return {**inside, **{key: value for key, value in env.items() if value is not None}, "env_config": rest}
