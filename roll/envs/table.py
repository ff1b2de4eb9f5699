"""The shipped environments by name, ROLL's names among them. Imports none of them."""

from collections.abc import Mapping
from typing import Any

ENVIRONMENTS: Mapping[str, str] = {
    "frozen_lake": "roll.envs.frozen_lake:FrozenLake",
    "sokoban": "roll.envs.sokoban:Sokoban",
    "countdown": "roll.envs.toys.countdown:Countdown",
    "native": "roll.envs.native:NativeEnv",
    "sokoban_native_env": "roll.envs.native:SokobanNative",
    "frozen_lake_native_env": "roll.envs.native:FrozenLakeNative",
    "roll_math": "roll.envs.questions:MathQuestions",
    "roll_qa": "roll.envs.questions:QaQuestions",
    "webshop": "roll.envs.webshop.shop:WebShop",
    "gymnasium": "roll.envs.gymnasium:GymnasiumEnv",
    "gem": "roll.envs.gymnasium:GemEnv",
}

ASKS_ROWS = ("roll_math", "roll_qa")
"""Environments that take questions from the rows of a data file, which can be counted."""

_ROCK = "runs in containers of ROCK, a service: write an environment that calls yours, as package.module:Class"
NOT_HERE: Mapping[str, str] = {
    "deepeyes": "calls tools on pictures of its own data set: write an environment that shows them, as "
    "package.module:Class",
    "sokoban_sandbox": "plays in containers of ROCK, a service; env_type: sokoban is the same game in the process",
    "sokoban_mcp": "gets its moves from a server; env_type: sokoban is the same game in the process",
    "sokoban_tool_call": "moves by tool calls; env_type: sokoban_native_env is the same game as a conversation",
    "rock_tb_native_env": _ROCK,
    "tb_native_env": _ROCK,
    "tb_env": _ROCK,
    "swe_native_env": _ROCK,
    "swe_env": _ROCK,
    "cli": _ROCK,
    "roll_code": "scores programs; use an RLVR run for that",
    "openreward_env": "calls openreward.ai, a service: write an environment that calls it, as package.module:Class",
    "atropos_env": "calls a server of Atropos: write an environment that calls yours, as package.module:Class",
}
"""ROLL's environments without a counterpart here: why, and what to do instead."""

GEM_FAMILIES = ("game", "math", "code", "qa", "rg", "eval")
WHOLE_ANSWER = "(.*)"
LAST_TAGGED = ".*<answer>(.*?)</answer>"


def gem_id(env_type: str) -> str | None:
    """The id of GEM's that an env_type is, None for any other. Examples: game:GuessTheNumber-v0 and gem:game:Sudoku are
    ids (the prefix gem: goes), own.module:Class is none."""
    if env_type.startswith("gem:"):
        return env_type.removeprefix("gem:")
    family, colon, name = env_type.partition(":")
    is_path = name.isidentifier() and family not in GEM_FAMILIES
    return env_type if colon and name and not is_path and "." not in family else None


def default_pattern(env_type: str, env_config: Mapping[str, Any]) -> str | None:
    """The action_pattern of environments that find the answer in a text themselves, None for others."""
    if env_type == "gem" or gem_id(env_type) is not None or env_type == "roll_math":
        return WHOLE_ANSWER
    if env_type == "roll_qa":
        return WHOLE_ANSWER if env_config.get("extract_boxed") else LAST_TAGGED
    return None


# Classes of tools for env_manager_cls: tools, by name.

TOOL_CLASSES: Mapping[str, str] = {"harbor": "roll.envs.adapters.harbor:HarborTask"}

# The shipped tools by name, ROLL's names among them. Imports none of them.

TOOLS: Mapping[str, str] = {
    "calculator": "roll.envs.tools.calculator:CalculatorTool",
    "search": "roll.envs.tools.search:SearchTool",
    "python_code": "roll.envs.tools.python_code:PythonCodeTool",
    "verl": "roll.envs.tools.verl_tool:VerlTool",
}

TOOLS_NOT_HERE: Mapping[str, str] = {
    "mcp": "calls a server of the Model Context Protocol: set env_manager_cls: tools, with the server under "
    "tool_servers (docs/agents.md)",
}
"""ROLL's tools without a counterpart here, and what to do instead."""
