"""The shipped tools by name, ROLL's names among them. Imports none of them."""

from collections.abc import Mapping

PACKAGE = "roll.pipeline.agentic.tools"

TOOLS: Mapping[str, str] = {
    "calculator": f"{PACKAGE}.calculator:CalculatorTool",
    "search": f"{PACKAGE}.search:SearchTool",
    "python_code": f"{PACKAGE}.python_code:PythonCodeTool",
}

NOT_HERE: Mapping[str, str] = {
    "mcp": "calls a server of the Model Context Protocol, which is not supported. Write a tool that calls the server "
    "(package.module:Class, a Tool of roll.pipeline.agentic.tools.base)",
}
"""ROLL's tools without a counterpart here, and what to do instead."""
