"""Rewards of every kind in one run, on shared devices: rules, a sandbox, two judges and a reward model."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from roll.rewards.code.languages import find_python
from roll.utils.sandbox.backends import SandboxUnavailable, find_means
from tests.helpers.judge_server import HANGS, Act, JudgeServer, judge_server, says
from tests.helpers.runs import END_LIMIT_S, Run, comparable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # two runs of nine processes each

StartRun = Callable[..., Run]
HERE = Path(__file__).parent / "multi_domain"
DOMAINS = ("math", "code", "ifeval", "judged", "rated", "liked")


def verdict(body: dict[str, Any]) -> Act:
    """Depends on the question and the answer alone."""
    shown = body["messages"][-1]["content"]
    return says(f"Verdict: {'yes' if sum(map(ord, shown)) % 3 else 'no'}")


@pytest.fixture
def judge() -> Iterator[JudgeServer]:
    with judge_server(choose=verdict) as server:
        yield server


@pytest.fixture
def settings(
    tmp_path: Path, sort_data: Path, make_tiny_model_dir: Callable[..., Path], judge: JudgeServer
) -> list[str]:
    python = find_python()
    try:
        find_means(*python.shown)
    except SandboxUnavailable as why:
        pytest.skip(str(why))
    prompts = [json.loads(line) for line in (sort_data / "train.jsonl").read_text().splitlines()[:60]]
    more: dict[str, dict[str, Any]] = {
        "code": {"case_type": "stdin", "test_cases": [{"stdin": "", "expected_stdout": "1"}]},
        "ifeval": {"instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": ["answer"]}]},
    }
    tags = {"math": "sums"}
    rows = [
        {**prompt, "tag": tags.get(domain, domain), **more.get(domain, {})}
        for domain, prompt in zip(DOMAINS * 10, prompts, strict=True)
    ]
    random.Random(3).shuffle(rows)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    model = make_tiny_model_dir(num_labels=1)
    return [f"rows={file}", f"reward_pretrain={model}", f"rewards.judged.judge_api_url={judge.url}"]


def test_all_kinds_of_rewards_on_shared_devices_resume_bit_for_bit(
    sort_data: Path, start_run: StartRun, settings: list[str], judge: JudgeServer
):
    whole = start_run(sort_data, "multi_domain", *settings, name="whole", example=HERE).finished()
    rows = whole.metrics
    for step in (1, 2, 3, 4):
        row = rows[step]
        assert row["rollout/failed_fraction"] == 0
        assert {f"rollout/reward_mean/{domain}" for domain in DOMAINS} <= set(row)
        assert row["rollout/code_found_mean"] == 1  # each answer ran, or did not parse, in the sandbox
        assert row["rollout/judge_answer_tokens_mean"] > 0
        assert row["time/reward_s"] > 0  # of the models on the trainer's devices, after the rollout
    assert len(judge.asked) >= 4 * 8
    board = [json.loads(line) for line in (whole.output_dir / "board" / "step_000001.jsonl").read_text().splitlines()]
    assert {row["domain"] for row in board} == set(DOMAINS)
    for row in board:
        assert row["logprobs"] == pytest.approx(row["rollout_logprobs"], abs=1e-3)  # of the policy, of the engine
        assert sum(row["token_rewards"]) == pytest.approx(row["reward"])
        assert len(row["response_tokens"]) == len(row["logprobs"])

    checkpoint = f"resume_from_checkpoint={whole.output_dir}/checkpoints/step_000002"
    resumed = start_run(sort_data, "multi_domain", *settings, checkpoint, name="resumed", example=HERE).finished()
    for step in (3, 4):
        assert comparable(resumed.metrics[step]) == comparable(rows[step]), f"step {step}"


def test_judges_that_fall_silent_or_die_and_a_hung_sandbox_are_survived_and_a_dead_reward_model_ends_the_run(
    sort_data: Path, start_run: StartRun, settings: list[str], judge: JudgeServer
):
    """The run goes on from its last checkpoint."""
    often = ("save_steps=1", "eval_steps=-1")
    run = start_run(sort_data, "multi_domain", *settings, *often, "max_steps=400", name="run", example=HERE)
    run.wait_for_step(1)
    unanswered = len(judge.asked) + 3
    judge.acts = lambda body: HANGS if len(judge.asked) < unanswered else verdict(body)
    run.worker("rewards.code").send_signal(signal.SIGKILL)
    run.worker("rewards.rated").send_signal(signal.SIGKILL)
    faulty = max(run.metrics)
    run.wait_for_step(faulty + 3)
    assert any(row["rollout/judge_restarted_engines"] for row in run.metrics.values())
    assert max(row["rollout/failed_fraction"] for row in run.metrics.values()) < 0.5
    run.worker("rewards.liked").send_signal(signal.SIGKILL)
    assert run.wait(END_LIMIT_S) == 1, run.text
    assert "rewards.liked rank" in run.text and "died" in run.text
    run.assert_all_gone()

    done = max(run.metrics)
    go_on = ("resume_from_checkpoint=true", f"max_steps={done + 1}")
    again = start_run(sort_data, "multi_domain", *settings, *often, *go_on, name="run", example=HERE).finished()
    assert max(again.metrics) == done + 1
