"""The shipped tools by name, ROLL's names among them. Imports none of them."""

from collections.abc import Mapping

PACKAGE = "roll.envs.tools"

TOOLS: Mapping[str, str] = {
    "calculator": "roll.envs.tools.calculator:CalculatorTool",
    "search": "roll.envs.tools.tools_search:SearchTool",
    "python_code": "roll.envs.tools.python_code:PythonCodeTool",
}

NOT_HERE: Mapping[str, str] = {
    "mcp": "calls a server of the Model Context Protocol, which is not supported. Write a tool that calls the server "
    "(package.module:Class, a Tool of roll.envs.tools.tools_base)",
}
"""ROLL's tools without a counterpart here, and what to do instead."""
