"""Whole runs whose answers a language model judges: the demo's own, which always says four digits; the first of them is
its score."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.runs import END_LIMIT_S, START_LIMIT_S, Run, comparable

StartRun = Callable[..., Run]

SHORT = (
    "eval_steps=-1",
    "rollout_batch_size=8",
    "actor_train.training_args.warmup_steps=0",
    "actor_train.training_args.gradient_accumulation_steps=1",
    "~rewards.sort.reward_args.pattern",
    "~rewards.sort.world_size",
)


def engines(at: str, device: int, model: str = "${pretrain}") -> list[str]:
    """The overrides with which a section has a judge's engine, of the demo's own model."""
    return [
        f"+{at}.model_args={{dtype: fp32, model_name_or_path: '{model}'}}",
        f"+{at}.strategy_args.strategy_name=hf_infer",
        f"+{at}.device_mapping=[{device}]",
    ]


def judged(domain: str, kind: str, temperature: float = 0.0) -> list[str]:
    """The overrides with which a judge scores this domain."""
    at = f"rewards.{domain}"
    return [
        f"++{at}.reward=llm_judge",
        f"+{at}.judge_model_type={kind}",
        f"+{at}.judge_prompt='{{response}}'",
        f"+{at}.judge_verdict_pattern='<answer>(\\d)'",
        f"+{at}.judge_score_range=[0, 9]",
        f"+{at}.generating_args={{max_new_tokens: 12, temperature: {temperature}}}",
    ]


def records(run: Run, step: int) -> list[dict[str, Any]]:
    lines = (run.output_dir / "rollouts" / f"step_{step:06d}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def greedy_answers(model_dir: Path, messages: Sequence[str]) -> list[str]:
    """What Hugging Face's own greedy generation says to each."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir).eval()
    said = []
    for message in messages:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": message}], add_generation_prompt=True, tokenize=False
        )
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        answer = model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
        said.append(tokenizer.decode(answer, skip_special_tokens=True))
    return said


def assert_verdicts_are_those_of_greedy_generation(run: Run, data: Path, step: int) -> None:
    found = records(run, step)
    # The tags are tokens of the tokenizer, which mean nothing where a judge is shown them.
    shown = [re.sub("<(?=/?answer>)", "< ", str(record["response_text"])) for record in found]
    said = greedy_answers(data / "model", shown)
    assert found and [record["extra"]["judge"] for record in found] == said
    digits = [re.search(r"<answer>(\d)", text) for text in said]
    expected = [None if digit is None else int(digit[1]) / 9 for digit in digits]
    assert [record["reward"] for record in found] == pytest.approx(expected)


def wait_for_restart(run: Run) -> int:
    """The step that tells of it."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        assert run.process.poll() is None, run.text
        for step, row in run.metrics.items():
            if row["rollout/judge_restarted_engines"]:
                return step
        time.sleep(0.1)
    pytest.fail(f"no engine was restarted:\n{run.text}")


@pytest.mark.slow
def test_a_judge_takes_turns_on_the_policys_devices_and_one_that_is_killed_comes_back(
    sort_data: Path, start_run: StartRun
) -> None:
    judge = [*judged("sort", "inference"), *engines("rewards.sort", 1)]
    run = start_run(sort_data, "tiny_sort", *SHORT, *judge, "max_steps=400", "save_steps=-1")
    run.wait_for_step(1)
    run.worker("rewards.sort").send_signal(signal.SIGKILL)
    last = wait_for_restart(run)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(END_LIMIT_S) == 128 + signal.SIGTERM, run.text
    assert run.metrics[1]["time/reward_s"] > 0 and run.metrics[last]["rollout/judge_restarted_engines"] == 1
    for step in (1, last):
        assert run.metrics[step]["rollout/judge_answer_tokens_mean"] > 0
        assert_verdicts_are_those_of_greedy_generation(run, sort_data, step)
    run.assert_all_gone()


@pytest.mark.slow
def test_domains_share_a_sampling_judge_beside_the_rollout_and_the_run_resumes_bit_for_bit(
    sort_data: Path, start_run: StartRun, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in (sort_data / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    file = tmp_path / "two_domains.jsonl"
    file.write_text(
        "".join(json.dumps(row | {"tag": ("sort", "other")[i % 2]}) + "\n" for i, row in enumerate(rows)),
        encoding="utf-8",
    )
    settings = [
        *SHORT,
        *judged("sort", "cluster", 1.0),
        *judged("other", "cluster", 0.5),
        *engines("reward_model", 2),
        f"actor_train.data_args.file_name={file}",
        "num_gpus_per_node=3",
        "max_steps=4",
    ]
    whole = start_run(sort_data, "tiny_sort", *settings, "save_steps=2", name="whole").finished()
    for step in (1, 2, 3, 4):
        row = whole.metrics[step]
        assert row["rollout/judge_answer_tokens_mean"] > 0 and "time/reward_s" not in row
        assert {record["domain"] for record in records(whole, step)} == {"sort", "other"}
    checkpoint = f"resume_from_checkpoint={whole.output_dir}/checkpoints/step_000002"
    resumed = start_run(sort_data, "tiny_sort", *settings, "save_steps=-1", checkpoint, name="resumed").finished()
    for step in (3, 4):
        assert comparable(resumed.metrics[step]) == comparable(whole.metrics[step]), f"step {step}"
        assert records(resumed, step) == records(whole, step)


@pytest.mark.slow
def test_a_judge_that_cannot_come_back_ends_the_run_with_the_cause(
    sort_data: Path, start_run: StartRun, tmp_path: Path
) -> None:
    model = tmp_path / "judge"
    shutil.copytree(sort_data / "model", model)
    judge = [*judged("sort", "inference"), *engines("rewards.sort", 2, str(model))]
    run = start_run(sort_data, "tiny_sort", *SHORT, *judge, "num_gpus_per_node=3", "max_steps=400", "save_steps=-1")
    run.wait_for_step(1)
    shutil.rmtree(model)
    run.worker("rewards.sort").send_signal(signal.SIGKILL)
    assert run.wait(START_LIMIT_S) == 1, run.text
    assert "rewards.sort rank 0 failed in setup" in run.text and str(model) in run.text
    run.assert_all_gone()
