"""Classes with the interface of verl's BaseTool are used as they are, without verl.

The classes here follow that interface as verl 0.9 has it (create, execute, calc_reward, release; a schema object with
attributes and model_dump), and the older one, whose responses are texts. Not covered: classes of verl itself.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from roll.envs.build import tool_problems
from roll.envs.config import ToolWrapperArgs, ToolWrapperConfig
from roll.envs.questions import MathQuestions
from roll.envs.tools.base import ToolEnv, ToolError, first_call
from roll.envs.tools.verl_tool import VerlTool
from roll.envs.toys.countdown import Countdown
from roll.errors import EnvError

SCHEMA = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number", "description": "One."}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}
HERE = __name__


class Base:
    """What verl's base class does with its arguments."""

    def __init__(self, config: dict[str, Any], tool_schema: Any):
        self.config, self.tool_schema = config, tool_schema or self.get_openai_tool_schema()
        self.name = self.tool_schema.function.name
        assert self.tool_schema.model_dump(exclude_unset=True, exclude_none=True)["type"] == "function"
        self.log: list[str] = []

    def get_openai_tool_schema(self) -> Any:
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, Any]:
        self.log.append(f"create {sorted(kwargs)}")
        return instance_id or str(uuid4()), SimpleNamespace(text=None)

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self.log.append("release")


class Adder(Base):
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> tuple[Any, float, dict]:
        await asyncio.sleep(0)
        self.log.append("execute")
        total = parameters["a"] + parameters["b"] + self.config.get("more", 0)
        return SimpleNamespace(text=f"{total:g}", image=None, video=None), 1.0, {}


class OlderAdder(Adder):
    async def create(self, instance_id: str | None = None, **kwargs: Any) -> str:  # type: ignore[override]
        return (await super().create(instance_id, **kwargs))[0]

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> tuple[Any, float, dict]:
        response, reward, metrics = await super().execute(instance_id, parameters)
        return response.text, reward, metrics


class Remembers(Adder):
    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, Any]:
        self.log.append(str(kwargs["create_kwargs"]))
        return "i", None


class OlderRemembers(Adder):
    async def create(self, instance_id: str | None = None, truth: str = "") -> str:  # type: ignore[override]
        self.log.append(f"truth {truth}")
        return "i"


class Painter(Base):
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> tuple[Any, float, dict]:
        return SimpleNamespace(text="look", image=[b"picture"]), 0.0, {}


def tool(name: str, **config: Any) -> VerlTool:
    return VerlTool(f"{HERE}.{name}", config, SCHEMA)


@pytest.mark.parametrize("name", ["Adder", "OlderAdder"])
def test_a_call_creates_executes_and_releases(name: str) -> None:
    made = tool(name, more=10)
    found = first_call([made], 'I add: <add>{"a": 1, "b": 2}</add>')
    assert found is not None
    assert made.run(found[1]) == "13"
    assert made._tool.log == ["create ['create_kwargs']", "execute", "release"]
    assert "Adds two numbers." in made.instruction and '"One."' in made.instruction


@pytest.mark.parametrize(
    ("name", "told", "empty"), [("Remembers", "{'truth': '3', 'other': 4}", "{}"), ("Adder", "create ['create_", None)]
)
def test_create_gets_what_the_row_says_of_the_tool(name: str, told: str, empty: str | None) -> None:
    made, call = tool(name), '{"a": 1, "b": 2}'
    kwargs = {"add": {"create_kwargs": {"truth": "3", "other": 4}}, "sub": {"create_kwargs": {"truth": "9"}}}
    made.begin({"extra_info": {"tools_kwargs": kwargs}})
    made.run(call)
    assert made._tool.log[0].startswith(told)
    for row in ({}, {"extra_info": None}, {"extra_info": {"tools_kwargs": {"add": None}}}, {"extra_info": "text"}):
        made.begin(row)
        made.run(call)
        assert empty is None or made._tool.log[-3] == empty, "another row's do not stay"


def test_older_classes_work_and_pictures_or_missing_ones_are_refused() -> None:
    made = tool("OlderRemembers")
    made.begin({"extra_info": {"tools_kwargs": {"add": {"create_kwargs": {"truth": "3", "other": 4}}}}})
    assert made.run('{"a": 1, "b": 2}') == "3" and made._tool.log[0] == "truth 3"
    with pytest.raises(EnvError, match="pictures"):
        tool("Painter").run("{}")
    entry = {"tool_id": "verl", "tool_args": {"class_name": "not_there.Weather", "config": {}, "tool_schema": SCHEMA}}
    (problem,) = tool_problems("at", ToolWrapperConfig.model_validate({"tool_configs": [entry]}))
    assert "tool_configs[0].tool_args" in problem.text and "not_there" in problem.text


def test_a_question_hands_its_row_to_the_tools(tmp_path: Path) -> None:
    rows = [
        {"problem": f"{i}?", "answer": str(i), "extra_info": {"tools_kwargs": {"add": {"create_kwargs": {"truth": i}}}}}
        for i in range(3)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = tool("Remembers")
    env = ToolEnv(MathQuestions(str(tmp_path / "rows.jsonl"), mode="val"), [made], ToolWrapperArgs())
    for seed in (2, 0):
        assert env.reset(seed).startswith(f"{seed}?")
        env.step_answer('<add>{"a": 1, "b": 2}</add>', None)
        assert made._tool.log[-3] == f"{{'truth': {seed}}}"


def test_what_the_tool_raises_is_told_to_the_policy_and_the_instance_released() -> None:
    made = tool("Adder")
    step = ToolEnv(Countdown(), [made], ToolWrapperArgs()).step('<add>{"a": 1}</add>')
    assert step.observation == "<tool_response>\nError: KeyError: 'b'\n</tool_response>"
    assert made._tool.log[-1] == "release"
    for broken in ("{", "[1]"):
        with pytest.raises(ToolError, match="rguments for 'add'"):
            made.run(broken)


def test_a_class_may_have_its_schema_itself() -> None:
    class Own:
        def __init__(self, config: dict[str, Any], tool_schema: Any):
            assert tool_schema is None
            self.tool_schema = SimpleNamespace(model_dump=lambda **_: SCHEMA)

        create = execute = release = None

    Own.create, Own.execute, Own.release = Adder.create, Adder.execute, Adder.release  # type: ignore[method-assign]
    globals()["Own"] = Own
    assert VerlTool(f"{HERE}:Own").name == "add"


def test_a_class_of_another_interface_is_refused() -> None:
    with pytest.raises(EnvError, match="has no create, execute, release"):
        tool("SimpleNamespace")
