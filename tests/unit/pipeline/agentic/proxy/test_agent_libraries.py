"""Agent libraries as they are: each plays a conversation with a tool call over its own client, in one row that breaks
nowhere; smolagents tells the policy of its calls in words of its own, which starts a row. None of them is a dependency:
a test runs where its library is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from roll.utils.imports import resolve
from tests.unit.pipeline.agentic.proxy.parts import CALL, Place, serve

SAID = ["<think>look</think>" + CALL, "<think>seen</think>It holds 7."]
QUESTION = "What is in box F?"


def open_box(box: str) -> str:
    """Opens a box.

    Args:
        box: The letter of the box.
    """
    return f"box {box} holds 7"


def plays(ask: Callable[[Place], Awaitable[str]], thinks: bool = True) -> None:
    """The library calls the tool, shows its result, and gives the answer."""

    async def play(place: Place) -> None:
        assert "7" in await ask(place)
        counts = place.session.transcript.counts
        assert (counts["requests"], counts["continued"], counts["broken"]) == (2, 1, 0), place.session.transcript.breaks
        (row,) = place.rows()
        text = place.session.parser.encoder.show(row.input_ids)
        assert "box F holds 7" in text and row.facts.num_turns == 2

    said = [text.replace('"open"', '"open_box"') for text in SAID]
    serve(said if thinks else [text.rpartition("</think>")[2] for text in said], play)


@pytest.mark.parametrize("protocol", ["responses", "chat"])
def test_openai_agents(protocol: str) -> None:
    agents: Any = pytest.importorskip("agents", reason="openai-agents is not installed")

    async def ask(place: Place) -> str:
        agents.set_tracing_disabled(True)
        kind = agents.OpenAIResponsesModel if protocol == "responses" else agents.OpenAIChatCompletionsModel
        agent = agents.Agent(
            name="opener", model=kind("policy", place.openai()), tools=[agents.function_tool(open_box)]
        )
        return str((await agents.Runner.run(agent, QUESTION)).final_output)

    plays(ask, thinks=protocol == "responses")


PYDANTIC_AI = {
    "chat": ("openai", "OpenAIChatModel"),
    "responses": ("openai", "OpenAIResponsesModel"),
    "anthropic": ("anthropic", "AnthropicModel"),
}


@pytest.mark.parametrize("protocol", PYDANTIC_AI)
def test_pydantic_ai(protocol: str) -> None:
    ai: Any = pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")

    async def ask(place: Place) -> str:
        library, name = PYDANTIC_AI[protocol]
        kind: Any = resolve(f"pydantic_ai.models.{library}:{name}")
        provider: Any = resolve(
            f"pydantic_ai.providers.{library}:{'OpenAI' if library == 'openai' else 'Anthropic'}Provider"
        )
        client = {f"{library}_client": place.openai() if library == "openai" else place.anthropic()}
        model = kind("policy", provider=provider(**client))
        return str((await ai.Agent(model, tools=[open_box]).run(QUESTION)).output)

    plays(ask)


def test_langgraph() -> None:
    graphs: Any = pytest.importorskip("langgraph.prebuilt", reason="langgraph is not installed")
    chat: Any = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")

    async def ask(place: Place) -> str:
        base, key = place.variables["OPENAI_BASE_URL"], place.variables["OPENAI_API_KEY"]
        model = chat.ChatOpenAI(model="policy", base_url=base, api_key=key)
        reply = await graphs.create_react_agent(model, [open_box]).ainvoke({"messages": [("user", QUESTION)]})
        return str(reply["messages"][-1].content)

    plays(ask, thinks=False)


def test_smolagents_writes_calls_anew() -> None:
    smol: Any = pytest.importorskip("smolagents", reason="smolagents is not installed")

    async def ask(place: Place) -> str:
        base, key = place.variables["OPENAI_BASE_URL"], place.variables["OPENAI_API_KEY"]
        model = smol.OpenAIModel(model_id="policy", api_base=base, api_key=key)
        agent = smol.ToolCallingAgent(tools=[smol.tool(open_box)], model=model, max_steps=3, verbosity_level=0)
        return str(await asyncio.to_thread(agent.run, QUESTION))

    final = CALL.replace('"open"', '"final_answer"').replace('"box": "F"', '"answer": "7"')

    async def play(place: Place) -> None:
        assert await ask(place) == "7"
        assert [one.cause for one in place.session.transcript.breaks] == ["answer_edited"]
        assert len(place.rows()) == 2

    serve([CALL.replace('"open"', '"open_box"'), final], play)
