"""Builds an environment from a `custom_envs` entry."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from roll.configs.problems import Problem
from roll.envs.base import Env
from roll.envs.config import AGENT_NATIVE, EnvConfig, ToolConfig, ToolWrapperConfig
from roll.envs.gymnasium import GemEnv
from roll.envs.table import ENVIRONMENTS, TOOLS, gem_id
from roll.envs.tools.base import Tool, ToolEnv
from roll.errors import EnvError, MissingPackage, describe
from roll.utils.imports import is_missing, resolve

# Builds tools from `tool_configs`.


def build_tools(config: ToolWrapperConfig) -> list[Tool]:
    return [_tool_class(one.tool_id)(**one.tool_args) for one in config.tool_configs]


def tool_problems(at: str, config: ToolWrapperConfig) -> list[Problem]:
    """Why some tool cannot be built; empty if each was."""
    problems = [text for i, one in enumerate(config.tool_configs) for text in _problems(f"{at}.tool_configs[{i}]", one)]
    names = [] if problems else [tool.name for tool in build_tools(config)]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        text = f"{at}.tool_configs: two tools are called {', '.join(repeated)}: a call could mean either."
        problems.append(Problem(text, (f"{at}.tool_configs",)))
    return problems


def _problems(at: str, config: ToolConfig) -> list[Problem]:
    try:
        constructor = _tool_class(config.tool_id)
    except (ImportError, EnvError) as error:
        return [Problem(f"{at}.tool_id: {error}.", (f"{at}.tool_id",))]
    return _built(lambda: constructor(**config.tool_args), constructor, config.tool_id, (f"{at}.tool_args",), TOOLS)


def _built(
    build: Callable[[], object], constructor: Any, name: str, keys: tuple[str, ...], shipped: Mapping[str, str]
) -> list[Problem]:
    """Why it cannot be built. A package that is not here is the machine's, a file the place's."""
    try:
        build()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        known = f" It takes {', '.join(inspect.signature(constructor).parameters)}." if type(error) is TypeError else ""
        text = f"{keys[-1]}: {name} cannot be built: {describe(error)}.{known}"
        of_files = isinstance(error, EnvError) and name in shipped
        return [Problem(text, keys, "machine" if isinstance(error, MissingPackage) else "place" if of_files else "run")]
    return []


def _tool_class(tool_id: str) -> Any:
    tool_class = resolve(tool_id, TOOLS)
    if not (isinstance(tool_class, type) and issubclass(tool_class, Tool)):
        raise EnvError(f"{tool_id} is not a tool: it must be a subclass of roll.envs.tools.base.Tool")
    return tool_class


def env_class(env_type: str) -> Any:
    """Return the class or function that makes such environments from their env_config. Raises ImportError, or EnvError
    if the object lacks the methods of an environment."""
    if (name := gem_id(env_type)) is not None:
        return lambda **kwargs: GemEnv(name, kwargs)
    cls = resolve(env_type, ENVIRONMENTS)
    missing = [name for name in ("reset", "step") if not callable(getattr(cls, name, None))]
    if not callable(cls) or missing:
        raise EnvError(f"{env_type} is not an environment: it has no {' and no '.join(missing) or 'constructor'}")
    return cls


def build_env(config: EnvConfig) -> Env:
    env = env_class(config.env_type)(**config.env_config)
    wrapper = config.tool_wrapper
    return env if wrapper is None else ToolEnv(env, build_tools(wrapper), wrapper.wrapper_args)


def import_problems(at: str, config: EnvConfig) -> list[Problem]:
    """Why no environment of this entry can be built; empty if one was. The package that a shipped adapter plays is the
    machine's."""
    keys = (f"{at}.env_type", f"{at}.env_config")
    try:
        constructor = env_class(config.env_type)
    except (ImportError, EnvError) as error:
        is_away = isinstance(error, ImportError) and gem_id(config.env_type) is None and is_missing(config.env_type)
        return [Problem(f"{at}.env_type: {error}.", keys, "place" if is_away else "run")]
    if config.env_manager_cls == AGENT_NATIVE and not callable(getattr(constructor, "conversation", None)):
        name = config.env_type
        text = (
            f"{at}.env_type: {name} shows text and has no conversation(), which env_manager_cls: agent_native needs. "
            f"Set env_type: native, with env_config: {{env: {name}, env_config: {{...}}}}."
        )
        return [Problem(text, keys)]
    return _built(lambda: constructor(**config.env_config).close(), constructor, config.env_type, keys, ENVIRONMENTS)
