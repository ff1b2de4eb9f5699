"""The programs of examples/tiny-tools, as they are, against a policy that says what it should."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from roll.envs.tools.servers import ToolServers
from roll.pipeline.agentic.episode import Counts
from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
from roll.pipeline.agentic.proxy.player import ProgramPlayer
from roll.pipeline.agentic.proxy.tool_player import ToolPlayer
from roll.pipeline.agentic.sample_forms import ChatEncoder
from roll.types.rollout import Trajectory
from tests.unit.pipeline.agentic.proxy.parts import JOB, Engine, proxy_rules

EXAMPLE = Path(__file__).resolve().parents[5] / "examples" / "tiny-tools"


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"tiny_tools_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLE)])
    return module("prepare")


def asked(encoder: ChatEncoder, said: list[str], folder: Path) -> list[Trajectory]:
    """Rows of the same task where roll plays the loop with the example's class."""

    async def run() -> list[Trajectory]:
        keys = {"env_type": "tools", "env_manager_cls": "tools", "agent": None, "tool_class": "box_tools:BoxTools"}
        rules = proxy_rules(**keys, reward="box_tools:reward", tasks="boxes:Boxes", max_steps=3)
        engine = Engine(encoder, lambda number: said[number])
        return await ToolPlayer(rules, encoder, engine, ToolServers({}, folder)).play(JOB, Counts())

    return asyncio.run(run())


def played(agent: str, encoder: ChatEncoder, said: list[str], folder: Path) -> list[Trajectory]:
    async def run() -> list[Trajectory]:
        endpoint = Endpoint(encoder, Engine(encoder, lambda number: said[number]))
        player = ProgramPlayer(proxy_rules(agent=f"{agent}:play", tasks="boxes:Boxes", max_steps=3), endpoint, folder)
        try:
            return await asyncio.wait_for(player.play(JOB, Counts()), 120)
        finally:
            await player.stop()
            await endpoint.stop()

    return asyncio.run(run())


@pytest.mark.parametrize("sdk", ["openai", pytest.param("anthropic", marks=pytest.mark.slow)])
def test_the_program_samples_the_tokens_of_the_warm_up_and_knows_nothing_of_roll(
    prepare: Any, tmp_path: Path, sdk: str
) -> None:
    agent = f"agent_{sdk}"
    if importlib.util.find_spec(sdk) is None:
        pytest.skip(f"the package {sdk} is not installed")
    tokenizer = prepare.make_tokenizer()
    encoder = ChatEncoder(tokenizer)
    task = module("boxes").Boxes()[JOB.env_seed]
    box, digit = task["box"], task["digits"][task["box"]]
    call = f'<tool_call>{{"name": "open", "arguments": {{"box": "{box}"}}}}</tool_call>'
    messages = [
        {"role": "user", "content": task["question"]},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "open", "arguments": {"box": box}}}]},
        {"role": "tool", "content": digit},
        {"role": "assistant", "content": digit},
    ]
    ids, labels = prepare.encoded(tokenizer, messages)
    (row,), (native,) = played(agent, encoder, [call, digit], tmp_path), asked(encoder, [call, digit], tmp_path)
    for one in (row, native):
        assert one.reward == one.metrics["success"] == one.metrics["opened"] == 1
        assert one.metrics["broken_requests"] == 0
        assert one.input_ids.tolist() == ids
        assert one.response_mask.tolist() == [label != prepare.IGNORED for label in labels]
    assert native.log_probs.tolist() == row.log_probs.tolist()
    assert native.policy_versions.tolist() == row.policy_versions.tolist()
    assert "roll" not in (EXAMPLE / f"{agent}.py").read_text(encoding="utf-8").replace("of roll", "")
    assert len(tokenizer.encode(call)) == 9
