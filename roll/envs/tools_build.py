"""Builds tools from `tool_configs`."""

from __future__ import annotations

import inspect
from typing import Any

from roll.configs.problems import Problem
from roll.envs.tools.tools_base import Tool
from roll.envs.tools_config import ToolConfig, ToolWrapperConfig
from roll.envs.tools_table import TOOLS
from roll.errors import EnvError, MissingPackage, describe
from roll.utils.imports import resolve


def build_tools(config: ToolWrapperConfig) -> list[Tool]:
    """Fresh tools for one episode."""
    return [_tool_class(one.tool_id)(**one.tool_args) for one in config.tool_configs]


def tool_problems(at: str, config: ToolWrapperConfig) -> list[Problem]:
    """Why some tool cannot be built; empty if each was."""
    problems = [text for i, one in enumerate(config.tool_configs) for text in _problems(f"{at}.tool_configs[{i}]", one)]
    names = [] if problems else [tool.name for tool in build_tools(config)]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        text = f"{at}.tool_configs: two tools are called {', '.join(repeated)}: an answer could mean either."
        problems.append(Problem(text, (f"{at}.tool_configs",)))
    return problems


def _problems(at: str, config: ToolConfig) -> list[Problem]:
    try:
        constructor = _tool_class(config.tool_id)
    except (ImportError, EnvError) as error:
        return [Problem(f"{at}.tool_id: {error}.", (f"{at}.tool_id",))]
    try:
        constructor(**config.tool_args)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        known = f" It takes {', '.join(inspect.signature(constructor).parameters)}." if type(error) is TypeError else ""
        text = f"{at}.tool_args: {config.tool_id} cannot be built: {describe(error)}.{known}"
        of_files = isinstance(error, EnvError) and config.tool_id in TOOLS
        of = "place" if of_files else "run"
        return [Problem(text, (f"{at}.tool_args",), "machine" if isinstance(error, MissingPackage) else of)]
    return []


def _tool_class(tool_id: str) -> Any:
    """Raises ImportError, or EnvError if what it names is no tool."""
    found = resolve(tool_id, TOOLS)
    if not (isinstance(found, type) and issubclass(found, Tool)):
        raise EnvError(f"{tool_id} is not a tool: it must be a subclass of roll.envs.tools.tools_base.Tool")
    return found
