"""`code_sandbox` as a run has it: built from settings, with rows, limits and failures."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets.preflight import preflight as data_preflight
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.pipeline.rlvr.row_operators import data_domains
from roll.rewards.base import RewardInput, RewardOutcome
from roll.rewards.code import reward as module
from roll.rewards.code.local import LocalJudge
from roll.rewards.config import RewardConfig
from roll.rewards.worker import RewardWorker
from roll.utils.sandbox.backends import SandboxUnavailable
from tests.helpers.cases import cases
from tests.helpers.rewards import preflight

pytestmark = pytest.mark.usefixtures("judge")
ROW = {
    "case_type": "stdin",
    "test_cases": [{"stdin": "1", "expected_stdout": "2"}, {"stdin": "2", "expected_stdout": "3"}],
}
ANSWER = "```python\nprint(2 * int(input()))\n```"


def settings(**keys: Any) -> RLVRConfig:
    return RLVRConfig.model_construct(rewards={"code": RewardConfig(reward="code_sandbox", **keys)})


def outcome(answer: str = ANSWER, row: Any = ROW, **keys: Any) -> RewardOutcome:
    worker = RewardWorker("code", RewardConfig(reward="code_sandbox", **keys))
    (found,) = worker.score([RewardInput("", answer, payload=row)])
    assert found is not None
    return found


def test_cases_pay_all_or_a_share_and_no_code_pays_nothing() -> None:
    hard, soft = (outcome(reward_type=kind) for kind in (None, "soft"))
    assert (hard.score, soft.score) == (0.0, 0.5)
    assert soft.metrics == {"code_found": 1, "passed_fraction": 0.5, "all_passed": 0, "runs": 1, "timed_out": 0}
    assert soft.extra == {"language": "python", "why": "case 2: expected '3', got '4\\n'"}
    found = outcome("I do not know.")
    assert (found.score, found.failure, found.metrics["code_found"]) == (0.0, None, 0.0)
    assert "column 'test_cases' is neither JSON" in str(outcome(row={"test_cases": "["}).failure)
    answer = "```python\nwhile True: pass\n```"
    found = outcome(answer, timeout_s=60, reward_args={"time_limit_s": 1, "total_time_s": 10})
    assert (found.score, found.failure, found.metrics["timed_out"]) == (0.0, None, 1.0)
    assert preflight(settings()) == []


def test_a_sandbox_that_fails_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = RewardWorker("code", RewardConfig(reward="code_sandbox"))
    monkeypatch.setattr("roll.utils.sandbox.job.DEVICES", ("/dev/no-such-device",))
    (found,) = worker.score([RewardInput("", ANSWER, payload=ROW)])
    assert found is not None and "SandboxError" in str(found.failure)


@cases("keys, text")
def test_preflight_refuses_what_cannot_work(keys: dict[str, Any], text: str) -> None:
    (problem,) = preflight(settings(**keys))
    assert problem.startswith("rewards.code.reward_args: code_sandbox") and text in problem


def test_preflight_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*shown: str) -> None:
        raise SandboxUnavailable("Install it: apt install libseccomp2")

    monkeypatch.setattr(module, "find_means", nothing)
    (problem,) = preflight(settings())
    assert "apt install libseccomp2. Or set use_local: false, and code_url" in problem
    monkeypatch.setattr("roll.rewards.code.languages.os.path.exists", lambda path: False)
    (problem,) = preflight(settings(reward_args={"languages": ["python", "cpp"]}))
    assert "cpp needs /usr/bin/g++, which is not there. Install it: apt install g++" in problem


def test_preflight_refuses_an_interpreter_that_does_not_start_in_the_sandbox(tmp_path: Path) -> None:
    """One that needs what a job does not see: here, this folder."""
    wrapper = tmp_path / "python"
    (tmp_path / "real").symlink_to(sys.executable)
    wrapper.write_text(f'#!/bin/sh\nexec "{tmp_path}/real" "$@"\n')
    wrapper.chmod(0o755)
    (problem,) = preflight(settings(reward_args={"python": str(wrapper)}))
    assert "does not start in the sandbox" in problem


def test_preflight_of_the_data_names_file_row_and_column(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "tag": "code", **ROW}, {"prompt": "p", "tag": "code", "test_cases": "[]"}]
    file = tmp_path / "code.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    args = DataArgs(file_name=(str(file),))
    (problem,) = data_preflight(args, "actor_train.data_args", data_domains(settings()))
    assert "code.jsonl:2" in problem and "column 'test_cases' is an empty list" in problem and "rewards.code" in problem


def test_another_interpreter_brings_its_packages(judge: LocalJudge) -> None:
    answer = "```python\nimport pydantic\nprint(pydantic.VERSION)\n```"
    import pydantic

    row = {"test_cases": [{"stdin": "", "expected_stdout": pydantic.VERSION}]}
    args = {"time_limit_s": 20, "total_time_s": 200}
    assert outcome(answer, row, timeout_s=300, reward_args={**args, "python": sys.executable}).score == 1.0
    assert outcome(answer, row, timeout_s=300, reward_args=args).score == 0.0
