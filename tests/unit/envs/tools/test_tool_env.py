"""Tools around an environment: what is a call, what it earns, and what a training row looks like."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from roll.envs.build import build_env, tool_problems
from roll.envs.config import EnvConfig, ToolWrapperConfig
from roll.envs.tools.base import Tool, ToolError, first_call
from roll.envs.tools.calculator import CalculatorTool
from roll.envs.tools.search import SearchTool
from roll.errors import EnvError
from roll.pipeline.agentic.sample_forms import ChatEncoder
from tests.helpers.cases import cases
from tests.unit.envs.test_questions import CORPUS
from tests.unit.pipeline.agentic.parts import GO, Script, env_config, job, player
from tests.unit.pipeline.agentic.test_episode import sampled

CALL = "<calculator>6 * 7</calculator>"


class Echo(Tool):
    name = "echo"
    instruction = "Say <echo>it</echo>."

    def __init__(self, fails: bool = False):
        self.fails = fails

    def run(self, call: str) -> str:
        if self.fails:
            raise ToolError("no echo")
        return call


@pytest.fixture(scope="module")
def encoder(tiny_tokenizer: PreTrainedTokenizerFast) -> ChatEncoder:
    return ChatEncoder(tiny_tokenizer)


def with_tools(*tools: dict[str, Any], **args: Any) -> EnvConfig:
    tools = tools or ({"tool_id": "calculator"},)
    wrapper = {"tool_configs": list(tools), "wrapper_args": args}
    return env_config(tool_wrapper=wrapper, env_config={"length": 2}, format_penalty=-0.25)


def test_a_call_is_answered_with_its_result_and_is_no_action(encoder: ChatEncoder) -> None:
    """The row of an episode: call, act, call once more than may be, act. The text behind a call counts for nothing."""
    config = with_tools(max_tool_uses=1, tool_reward=0.1, tool_success_reward=0.2)
    script = Script(encoder, [CALL + GO, GO, CALL, GO])
    (row,) = asyncio.run(player(encoder, script, config, max_answer_tokens=64).play(job()))
    assert encoder.show(row.input_ids) == (
        f"<|im_start|>user\nat 0 of 2\n{CalculatorTool.instruction}<|im_end|>\n<|im_start|>assistant\n"
        f"{CALL}{GO}<|im_end|>\n<|im_start|>user\n<tool_response>\n6 * 7 = 42\nNo tool can be used any more: give your "
        f"answer.\n</tool_response><|im_end|>\n<|im_start|>assistant\n{GO}<|im_end|>\n<|im_start|>user\nat 1 of 2"
        f"<|im_end|>\n<|im_start|>assistant\n{CALL}<|im_end|>\n<|im_start|>user\nat 1 of 2<|im_end|>\n"
        f"<|im_start|>assistant\n{GO}<|im_end|>"
    )
    assert sampled(row, encoder) == [f"{text}<|im_end|>" for text in (CALL + GO, GO, CALL, GO)]
    assert row.turn_rewards is not None
    np.testing.assert_allclose(row.turn_rewards, [0.3, 0.5, -0.25, 0.5], rtol=1e-6)
    assert row.metrics["action_is_valid"] == 0.75
    assert (row.metrics["tool_call"], row.metrics["success"]) == (0.25, 1.0)


def test_calls_are_exact_and_what_comes_to_nothing_is_told() -> None:
    echo = {"tool_id": "tests.unit.envs.tools.test_tool_env:Echo", "tool_args": {"fails": True}}
    env = build_env(with_tools(echo, tool_reward=0.5, tool_execute_error_reward=-0.7))
    env.reset(0)
    step = env.step("<echo>hm</echo>")
    assert step.observation == "<tool_response>\nError: no echo\n</tool_response>"
    assert step.reward == pytest.approx(-0.2)
    assert step.metrics == {"action_is_valid": 1.0, "success": 0.0, "tool_call": 1.0, "tool_error": 1.0}
    tools = [CalculatorTool(), Echo()]
    assert first_call(tools, f"<echo>a</echo> {CALL}") == (tools[1], "a")
    assert first_call(tools, f"{CALL}<echo>a</echo>") == (tools[0], "6 * 7")
    assert first_call(tools, "<calculator>1 + 1 <echo>") is None
    assert CalculatorTool().run("(1 + 2) / 4") == "(1 + 2) / 4 = 3/4"
    with pytest.raises(ToolError, match="not understood: division by zero"):
        CalculatorTool().run("1 / 0")
    twice = ToolWrapperConfig.model_validate({"tool_configs": [{"tool_id": "calculator"}] * 2})
    assert [str(found) for found in tool_problems("at", twice)] == [
        "at.tool_configs: two tools are called calculator: a call could mean either."
    ]


def test_search_shows_the_best_texts_of_a_corpus() -> None:
    tool = SearchTool(corpus=CORPUS, topk=2)
    assert tool.run("who can fly") == (
        '<information>Doc 1(Title: "Bee") Bees fly and make honey.\n'
        'Doc 2(Title: "Kiwi") The kiwi is a bird of New Zealand that cannot fly.</information>'
    )
    assert tool.run("zzz") == "<information>nothing found</information>"
    with pytest.raises(ToolError, match="the query is empty"):
        tool.run("")


class Retriever(BaseHTTPRequestHandler):
    asked: list[Any] = []

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Retriever.asked.append(asked)
        found = [{"document": {"contents": f'"T{i}"\ntext {i}'}, "score": 1.0} for i in range(3)]
        body = json.dumps({"result": [found]} if asked["queries"] != ["bad"] else {}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def retriever() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Retriever)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/retrieve"
    server.shutdown()
    server.server_close()


def test_search_asks_a_server_and_a_server_without_an_answer_is_no_fault_of_the_policy(retriever: str) -> None:
    tool = SearchTool(search_url=retriever, topk=2, timeout=60)
    assert tool.run("q") == '<information>Doc 1(Title: "T0") text 0\nDoc 2(Title: "T1") text 1</information>'
    assert Retriever.asked[-1] == {"queries": ["q"], "topk": 2, "return_scores": True}
    with pytest.raises(EnvError, match="gave no documents: KeyError: 'result'"):
        tool.run("bad")


@cases("tool, text")
def test_a_tool_that_cannot_be_built_is_told_before_a_run(tool: dict[str, Any], text: str) -> None:
    (found,) = tool_problems("at", ToolWrapperConfig.model_validate({"tool_configs": [tool]}))
    assert text in str(found)
