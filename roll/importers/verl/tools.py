"""verl's files of tools and of interactions: which of them are here, and what is played with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from roll.configs.load.yaml_file import read_yaml
from roll.errors import ConfigError
from roll.importers.conversions import files
from roll.importers.verl.files import beside
from roll.importers.verl.pictures import ONLY_RLVR

_OWN_TOOL = "write it as a Tool of roll.envs.tools.base: tool_id: package.module:Class"
_PICTURES = ("geo3k", "image", "zoom", "video", "crop")
_SEARCHES = ("verl.tools.search_tool.SearchTool",)
_RUNS_CODE = (
    "verl.tools.sandbox_fusion_tools.SandboxFusionTool",
    "recipe.retool.retool.CustomSandboxFusionTool",
)
_CHECKS = ("verl.tools.gsm8k_tool.Gsm8kTool", "verl.interactions.gsm8k_interaction.Gsm8kInteraction")


@dataclass
class Tools:
    """`configs` of tool_wrapper, `lost` tools with the reason, and whether one `checks` an answer, so that another may
    follow; `nears`: how those that are here differ."""

    configs: list[dict[str, Any]] = field(default_factory=list)
    checks: bool = False
    lost: list[str] = field(default_factory=list)
    nears: list[str] = field(default_factory=list)

    @property
    def searches(self) -> bool:
        return any(tool["tool_id"] == "search" for tool in self.configs)


def tools_of(written: Any, script: Path | None, section: str) -> Tools:
    """Read the tools of a file, or of several; `section` is `tools` or `interaction`. A file that is not there, or says
    something else, has lost them all."""
    tools = Tools()
    for name in files(written):
        _read(tools, name, script, section)
    return tools


def _read(tools: Tools, written: str, script: Path | None, section: str) -> None:
    path = beside(written, script)
    if path is None:
        tools.lost.append(f"{written.rpartition('/')[2]} is not here: put it beside the script and import again")
        return
    try:
        tree = read_yaml(path)
    except (ConfigError, OSError, yaml.YAMLError) as error:
        tools.lost.append(f"{path.name} cannot be read: {error}")
        return
    entries = tree.get(section)
    if not isinstance(entries, list) or not entries:
        tools.lost.append(f"{path.name} has no list `{section}`")
        return
    for entry in entries:
        _add(tools, entry if isinstance(entry, Mapping) else {}, section)


def _add(tools: Tools, entry: Mapping[str, Any], section: str) -> None:
    path = str(entry.get("class_name") or "")
    name, config = path.rpartition(".")[2], entry.get("config")
    config = config if isinstance(config, Mapping) else {}
    lowered = name.lower()
    if "mcp" in lowered or config.get("type") == "mcp":
        tools.lost.append(
            f"{name or 'a tool'}: servers of the Model Context Protocol are called with env_manager_cls: tools, under "
            "tool_servers (docs/agents.md), which an import does not write"
        )
    elif any(word in lowered for word in _PICTURES):
        tools.lost.append(f"{name}: {ONLY_RLVR}")
    elif path in _SEARCHES:
        _search(tools, name, config)
    elif path in _RUNS_CODE:
        tools.configs.append({"tool_id": "python_code", "tool_args": dict(_timeout(config, "default_timeout"))})
        tools.nears.append(f"{name}: python_code runs the program, in the sandbox of this machine.")
    elif path in _CHECKS:
        tools.checks = True
    elif section != "tools" or not path:
        tools.lost.append(f"{path or 'a tool without class_name'} is not here; {_OWN_TOOL}")
    else:
        _as_it_is(tools, path, config, entry.get("tool_schema"))


def _as_it_is(tools: Tools, path: str, config: Mapping[str, Any], schema: Any) -> None:
    """A class with verl's interface, wherever it is from, which is called as it is."""
    args: dict[str, Any] = {"class_name": path}
    args |= {"config": dict(config)} if config else {}
    args |= {"tool_schema": dict(schema)} if isinstance(schema, Mapping) else {}
    tools.configs.append({"tool_id": "verl", "tool_args": args})
    tools.nears.append(f"{path} is called as it is, if it can be imported here; its rewards have no say.")


def search_tool(name: str, config: Mapping[str, Any]) -> Tools:
    """Return the tools of a program that has one server of search."""
    tools = Tools()
    _search(tools, name, config)
    return tools


def _search(tools: Tools, name: str, config: Mapping[str, Any]) -> None:
    keys = ("retrieval_service_url", "search_url", "sandbox_fusion_url", "url")
    url = next((str(config[key]) for key in keys if config.get(key)), None)
    if url is None:
        tools.lost.append(f"{name} names no server: search has search_url, or corpus for a file of texts")
        return
    args: dict[str, Any] = {"search_url": url, **dict(_timeout(config, "timeout"))}
    if isinstance(config.get("topk"), int):
        args["topk"] = config["topk"]
    tools.configs.append({"tool_id": "search", "tool_args": args})
    tools.nears.append(f"{name}: search asks the same server, one query in a call.")


def _timeout(config: Mapping[str, Any], key: str) -> Iterator[tuple[str, float]]:
    value = config.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        yield "timeout", float(value)
