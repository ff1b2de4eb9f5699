"""Settings of one environment, and of how it is talked to."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from roll.configs.base import Settings, setting
from roll.configs.sections.data import Names
from roll.envs.table import ASKS_ROWS, ENVIRONMENTS, default_pattern
from roll.utils.text import pieces

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
    return [name for _, name in pieces(template) if name is not None]


def fill(template: str, values: Mapping[str, object]) -> str:
    """The template with its fields filled in."""
    return "".join(text + ("" if name is None else str(values[name])) for text, name in pieces(template))


# `custom_envs.TAG.tool_wrapper`: tools that an answer may call instead of acting.


class ToolConfig(Settings):
    """One entry of `tool_configs`."""

    tool_id: str = setting(..., "calculator, search, python_code, or a tool of your own as package.module:Class.")
    tool_args: dict[str, Any] = setting({}, "Keyword arguments of the tool.")


class ToolWrapperArgs(Settings):
    """`tool_wrapper.wrapper_args`: how often tools may be called, and what a call earns."""

    max_tool_uses: int | None = setting(
        10, "Tool calls per episode; later responses are actions, whatever they hold. null: any number.", ge=0
    )
    tool_reward: float = setting(0.0, "Added to the reward of a turn that calls a tool.")
    tool_success_reward: float = setting(0.0, "Added to the reward of a turn whose tool call succeeded.")
    tool_execute_error_reward: float = setting(0.0, "Added to the reward of a turn whose tool call failed.", le=0)


class ToolWrapperConfig(Settings):
    """`tool_wrapper` of an environment."""

    wrapper_args: ToolWrapperArgs = setting({}, "How often, and for what reward.")
    tool_configs: tuple[ToolConfig, ...] = setting((), "The tools.")


# `custom_envs.TAG.tool_servers`: tools of servers of the Model Context Protocol.

WORKER, EPISODE = "worker", "episode"


class ToolServerConfig(Settings):
    """One of `tool_servers`: a server of the Model Context Protocol (MCP) whose tools the policy may call."""

    command: str | None = setting(None, "The program of a server that is started here and speaks over its input and "
                                        "output.")  # fmt: skip
    args: tuple[str, ...] = setting((), "Arguments of command. One that names a file of the YAML's folder is given as "
                                        "its whole path.")  # fmt: skip
    env: dict[str, str] = setting({}, "Environment variables of command, beside HOME, LOGNAME, PATH, SHELL, TERM and "
                                      "USER; no others are passed on.")  # fmt: skip
    url: str | None = setting(None, "In place of command: the address of a server that speaks streamable HTTP.")
    headers: dict[str, str] = setting({}, "HTTP headers of every request to url, for example Authorization.")
    scope: Literal["worker", "episode"] = setting(
        WORKER,
        "worker: the episodes of a process share one connection. episode: each has its own, and its own process of "
        "command, for servers that keep what a call has changed.",
    )
    prefix: str = setting("", "Stands before the names of this server's tools, so that they differ from others'.")
    timeout_s: float = setting(60.0, "Longest time of a call; after it the policy reads that it took too long.", gt=0)
    start_timeout_s: float = setting(60.0, "Longest time until the server has listed its tools.", gt=0)


TRAJECTORY, STEP, STEP_CONCAT, AGENT_NATIVE = "trajectory", "step", "step_concat", "agent_native"
VL_TRAJECTORY = "vl_trajectory"
PROXY, TOOL_LOOP = "proxy", "tools"
MANAGERS = (TRAJECTORY, VL_TRAJECTORY, STEP, STEP_CONCAT, AGENT_NATIVE, PROXY, TOOL_LOOP)
IN_SESSIONS: Mapping[str, str] = {PROXY: "program", TOOL_LOOP: "tools"}
"""Managers whose episodes are conversations in a session, with the env_type of their entries, which have none."""
PER_TURN = (STEP, STEP_CONCAT, AGENT_NATIVE)
"""Managers whose samples are single turns."""
ROLL_MANAGERS: Mapping[str, str] = {
    "roll.pipeline.agentic.env_manager.traj_env_manager.TrajEnvManager": TRAJECTORY,
    "roll.pipeline.agentic.env_manager.vl_traj_env_manager.VLTrajEnvManager": VL_TRAJECTORY,
    "roll.pipeline.agentic.env_manager.step_env_manager.StepEnvManager": STEP,
    "roll.pipeline.agentic.env_manager.step_concat_env_manager.StepConcatEnvManager": STEP_CONCAT,
    "roll.pipeline.agentic.env_manager.agent_native_env_manager.AgentNativeStepEnvManager": AGENT_NATIVE,
    "roll.pipeline.agentic.env_manager.proxy_env_manager.ProxyEnvManager": PROXY,
}
LIFTED = ("action_pattern", "format_penalty", "env_instruction")
"""Keys that ROLL users write into env_config and that the env manager, not the environment, needs here."""


def _manager(name: object) -> object:
    return ROLL_MANAGERS.get(name, name) if isinstance(name, str) else name


class EnvConfig(Settings):
    """One entry of `custom_envs`: an environment under a tag, and how it is talked to."""

    env_type: str = setting(
        ...,
        f"The environment: {', '.join(ENVIRONMENTS)}; an id of GEM's, such as game:GuessTheNumber-v0; or a class of "
        "your own as package.module:Class.",
    )
    env_config: dict[str, Any] = setting({}, "Keyword arguments of the environment.")
    env_manager_cls: Annotated[str, BeforeValidator(_manager)] = setting(
        TRAJECTORY,
        "trajectory: one sample per episode, the whole conversation. vl_trajectory: the same where observations may be "
        "pictures, for a vision model. step: one sample per turn, whose prompt holds the "
        "last history_length turns. step_concat: the same with the observations of these turns alone, as they were. "
        "agent_native: one sample per turn, whose prompt is the conversation that the environment keeps itself; it "
        "gets whole responses, and no template is used. proxy: a program asks over HTTP, see agent. tools: the policy "
        "calls the tools of servers or of a class until it responds in words, see tool_servers and tool_class. ROLL's "
        "class paths of the first six are understood.",
    )
    agent: str | None = setting(
        None,
        "env_manager_cls: proxy: the function that plays an episode, module:function, called with a task and a session "
        "in a process of its own; it returns the reward, or a mapping with reward and metrics. module:Class: an object "
        "of it is made with env_config, once per worker, and called so. Without agent "
        "and agent_command, programs from outside take the sessions: agent_endpoint. docs/agents.md.",
    )
    agent_command: str | None = setting(
        None,
        "env_manager_cls: proxy: the command that plays an episode, in place of agent. {base_url}, {api_key}, "
        "{anthropic_base_url}, {model}, {task_file} and {reward_file} are filled in.",
    )
    sandbox: bool = setting(
        False,
        "agent_command: each program runs in a sandbox of its own, which sees this Python, the system's programs, the "
        "files that the command names and agent_files, writes to its own folder alone, and reaches the endpoint and "
        "nothing else.",
    )
    agent_files: Names = setting(
        (), "sandbox: true: further files and folders that the program sees, such as modules beside it."
    )
    agent_truths: Names = setting(
        (),
        "sandbox: true: columns of a task with a name such as answer or ground_truth that the program sees. Without "
        "it they are left out, since what the policy runs inside can read them, too.",
    )
    sides: Names = setting(
        (),
        "env_manager_cls: proxy: names of models under which the policy plays the sides of an episode, such as [white, "
        "black]. Each side has its own rows and reward, and is compared with the same side in the group.",
    )
    tasks: str | None = setting(
        None,
        "env_manager_cls: proxy and tools: a file of JSON lines, a folder of Harbor tasks, or package.module:name of "
        "what has a length and items; an episode gets row env_seed modulo their number. None: a task holds its seed "
        "alone.",
    )
    tool_servers: dict[str, ToolServerConfig] = setting(
        {}, "env_manager_cls: tools: MCP servers by name, whose tools the policy may call. docs/agents.md."
    )
    tool_class: str | None = setting(
        None,
        "env_manager_cls: tools: a class, package.module:Class, whose public methods are tools. env_config holds the "
        "arguments of its constructor; its reset(**task) may return text, its get_reward() the reward. harbor is the "
        "shipped one: a shell for Harbor tasks. docs/agents.md.",
    )
    question_key: str = setting(
        "question",
        "env_manager_cls: tools: the column of a task that is asked, a text or a list of messages. What the class's "
        "reset returns is appended to it.",
    )
    reward: str | None = setting(
        None,
        "env_manager_cls: tools: a function module:function, called with the task and the messages of the episode; it "
        "returns the reward, or a mapping with reward and metrics. Default: the class's get_reward().",
    )
    answer_key: str | None = setting(
        None,
        "env_manager_cls: tools: in place of reward, the column of a task with the accepted answers (docs/rewards.md). "
        "The last response has to equal one, without white space around it: reward 1, else 0.",
    )
    max_result_tokens: int = setting(
        1024, "env_manager_cls: tools: most tokens of a tool's result; a longer one is cut in its middle.", ge=16
    )
    max_steps: int = setting(10, "An episode is cut off after N turns; with proxy and tools, N responses.", ge=1)
    max_tokens_per_step: int | None = setting(
        None,
        "Longest response of a turn. Default: actor_infer.generating_args.max_new_tokens, else what is left.",
        ge=1,
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
        "Regular expression that finds the action in a response: its last group. With thinking, for example "
        r"<think>(.*?)</think>\s*<answer>(.*?)</answer>. Default for roll_math and GEM: the whole response; for "
        "roll_qa: the text between the last tags.",
    )
    tool_wrapper: ToolWrapperConfig | None = setting(
        None, "Tools that the policy may call instead of acting; it gets the result and responds again."
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
    def is_session(self) -> bool:
        """Its episodes are conversations in a session, which may come to several samples."""
        return self.env_manager_cls in IN_SESSIONS

    @property
    def asks_rows(self) -> bool:
        """True for a shipped environment that asks the rows of a data file: epochs of it can be counted."""
        return self.env_type in ASKS_ROWS

    @property
    def is_per_turn(self) -> bool:
        return self.env_manager_cls in PER_TURN


def lifted(env: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the env manager that stand in env_config, where ROLL wants them; what stands outside wins."""
    env = {key: value for key, value in env.items() if value is not None}
    name, env_config = env.get("env_manager_cls"), env.get("env_config") or {}
    if not isinstance(env_config, Mapping):
        return env
    manager = ROLL_MANAGERS.get(name, name) if isinstance(name, str) else ""
    if manager in IN_SESSIONS or (manager and manager not in MANAGERS):  # the typo is what is wrong, not its env_type
        env = {"env_type": IN_SESSIONS.get(manager, manager), **env}
    if manager == TOOL_LOOP or env.get("agent") is not None:  # env_config is the constructor's of a class
        return env
    env_type = env.get("env_type")
    is_native = manager == AGENT_NATIVE
    keys = [key for key in LIFTED if not (is_native and key == "action_pattern")]  # the environment finds its actions
    inside = {key: env_config[key] for key in (*keys, "max_steps") if key in env_config}  # max_steps is for both
    rest = {key: value for key, value in env_config.items() if key not in keys}
    pattern = default_pattern(env_type, env_config) if isinstance(env_type, str) and not is_native else None
    inside = ({} if pattern is None else {"action_pattern": pattern}) | inside
    return {**inside, **env, "env_config": rest}
