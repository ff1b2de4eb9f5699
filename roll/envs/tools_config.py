"""`custom_envs.TAG.tool_wrapper`: tools that an answer may call instead of acting."""

from typing import Any

from roll.configs.base import Settings, setting


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
