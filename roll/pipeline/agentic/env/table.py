"""The shipped environments by name. Imports none of them."""

from collections.abc import Mapping

PACKAGE = "roll.pipeline.agentic.env"

ENVIRONMENTS: Mapping[str, str] = {
    "frozen_lake": f"{PACKAGE}.frozen_lake:FrozenLake",
    "sokoban": f"{PACKAGE}.sokoban:Sokoban",
    "countdown": f"{PACKAGE}.countdown:Countdown",
    "bandit": f"{PACKAGE}.bandit:Bandit",
    "guess_number": f"{PACKAGE}.guess_number:GuessNumber",
    "calculator": f"{PACKAGE}.calculator:Calculator",
    "native": f"{PACKAGE}.native:NativeEnv",
    "sokoban_native_env": f"{PACKAGE}.native:SokobanNative",
    "frozen_lake_native_env": f"{PACKAGE}.native:FrozenLakeNative",
    "gymnasium": f"{PACKAGE}.gymnasium_env:GymnasiumEnv",
    "gem": f"{PACKAGE}.gem_env:GemEnv",
}

ADAPTERS = ("gymnasium", "gem")
"""Of these, those that wrap what is installed: only the machine of the run can tell whether they can be built."""

NOT_HERE = (
    "webshop",
    "deepeyes",
    "sokoban_mcp",
    "sokoban_sandbox",
    "sokoban_tool_call",
    "rock_tb_native_env",
    "roll_math",
    "roll_code",
    "roll_qa",
    "openreward_env",
    "atropos_env",
)
"""ROLL's environments without a counterpart here."""
