"""The agent of the recipe tool-135m: its calculator, its stories, and the conversations that SFT shows."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

RECIPE = Path(__file__).resolve().parents[3] / "examples" / "reproduce" / "tool-135m"


@contextmanager
def shopping() -> Iterator[ModuleType]:
    pytest.importorskip("openai", reason="the agent is made of OpenAI's SDK")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(RECIPE)
        import shopping  # pyright: ignore[reportMissingImports]

        yield shopping
    sys.modules.pop("shopping", None)


def test_sft_shows_right_calls_for_three_of_the_stories() -> None:
    with shopping() as agent:
        beginnings = {" ".join(story.split("{a}")[0].split()[:2]) for story in agent.STORIES}
        shown = set[str]()
        for line in (RECIPE / "calls.jsonl").read_text().splitlines():
            question, call, result, answer = json.loads(line)["messages"]
            said = call["tool_calls"][0]["function"]["arguments"]
            assert agent.calculate(json.dumps(said)) == result["content"] == answer["content"]
            shown |= beginnings & {" ".join(question["content"].split()[:2])}
        assert (len(shown), len(agent.STORIES)) == (3, 11)


def test_the_calculator_says_what_it_cannot_read() -> None:
    with shopping() as agent:
        assert agent.calculate('{"expression": "12 * 34"}') == "408"
        for arguments in ('{"expression": "236"}', '{"expression": "1 / 0"}', "{}"):
            assert agent.calculate(arguments).startswith("Error")


def test_a_story_has_the_result_of_its_two_numbers() -> None:
    with shopping() as agent:
        task = agent.Stories()[7]
        assert task == agent.Stories()[7]
        words = [int(word.strip(".")) for word in task["question"].split() if word.strip(".").isdigit()]
        assert task["number"] in {operate(*words) for operate in agent.OPERATORS.values()}
