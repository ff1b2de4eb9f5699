"""A judge behind an address, asked as a worker asks it: what goes wrong there is a failure, never a score."""

from __future__ import annotations

import base64
import io
import math
import socket
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from roll.pipeline.rlvr.judge_checks import unreachable_judges
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.rewards.base import RewardInput, RewardOutcome
from roll.rewards.config import RewardConfig
from roll.rewards.judge.api import ApiJudge
from roll.rewards.worker import RewardWorker
from roll.types.media import PictureSource
from tests.helpers.judge_server import CLOSES, HANGS, Act, judge_server, says, sends

pytest.importorskip("openai", reason="the client of judges behind an address is not installed")

SOON = {"retry-after-ms": "1"}  # or the client waits for half a second and more
BUSY, BROKEN = Act(b"{}", 429, SOON), Act(b"oops", 503, SOON)
PROMPT = "Q {question} R {reference} A {response}"


def settings(url: str, **changes: Any) -> RewardConfig:
    keys = {
        "reward": "llm_judge",
        "judge_model_type": "api",
        "judge_model_name": "m",
        "judge_api_url": url,
        "judge_prompt": PROMPT,
        "generating_args": {"temperature": 0},
        "timeout_s": 300.0,
    }
    return ApiJudge.for_workers(RewardConfig.model_validate(keys | changes))


def judged(config: RewardConfig, *responses: str) -> list[RewardOutcome]:
    inputs = [RewardInput("<user>6 * 7?", text, "42", question="6 * 7?") for text in responses or ("42",)]
    return [outcome for outcome in RewardWorker("math", config).score(inputs) if outcome is not None]


def test_the_judge_sees_the_prompt_and_its_verdict_is_the_score() -> None:
    with judge_server(says("Verdict: yes")) as server:
        (outcome,) = judged(settings(server.url, judge_api_key="key-123456"))
    assert outcome.score == 1.0 and outcome.failure is None
    assert outcome.metrics == {"judge_retries": 0, "judge_prompt_tokens": 20, "judge_answer_tokens": 3}
    assert outcome.extra == {"judge": "Verdict: yes"}
    message = {"role": "user", "content": "Q 6 * 7? R 42 A 42"}
    assert server.asked == [{"model": "m", "messages": [message], "temperature": 0.0}]
    assert server.headers[0]["authorization"] == "Bearer key-123456"


def test_a_judge_that_sees_is_shown_the_pictures_before_the_text(tmp_path: Path) -> None:
    """A PNG goes as it is; a JPEG, which may lie on its side, upright and as PNG."""
    Image.new("RGB", (3, 2), (9, 8, 7)).save(tmp_path / "a.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    Image.new("RGB", (16, 8), (200, 0, 0)).save(tmp_path / "b.jpg", exif=exif)
    shown = tuple(PictureSource("file", str(tmp_path / name), name) for name in ("a.png", "b.jpg"))
    sample = RewardInput("<user>6 * 7?", "42", "42", question="6 * 7?", pictures=shown)
    with judge_server(says("yes")) as server:
        (outcome,) = RewardWorker("math", settings(server.url, judge_sees_pictures=True)).score([sample])
        RewardWorker("math", settings(server.url)).score([sample])
    assert outcome is not None and outcome.score == 1.0, outcome
    first, second, text = server.asked[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "Q 6 * 7? R 42 A 42"}
    head = "data:image/png;base64,"
    files = [base64.b64decode(part["image_url"]["url"].removeprefix(head)) for part in (first, second)]
    assert files[0] == (tmp_path / "a.png").read_bytes()
    assert Image.open(io.BytesIO(files[1])).size == (8, 16)
    assert server.asked[1]["messages"][0]["content"] == "Q 6 * 7? R 42 A 42", "no judge sees them unasked"


def test_a_picture_that_cannot_be_read_fails_the_answer(tmp_path: Path) -> None:
    sample = RewardInput("6 * 7?", "42", "42", pictures=(PictureSource("file", str(tmp_path / "no.png"), "row 3"),))
    with judge_server(says("yes")) as server:
        (outcome,) = RewardWorker("math", settings(server.url, judge_sees_pictures=True)).score([sample])
    assert server.asked == []
    assert outcome is not None and outcome.failure is not None
    assert "the judge cannot be shown a picture: row 3" in outcome.failure


def test_sampling_goes_along_and_a_whole_address_is_understood() -> None:
    sampling = {"temperature": 0.5, "top_p": 0.9, "max_new_tokens": 7, "stop_strings": ["."]}
    with judge_server(says("no")) as server:
        (outcome,) = judged(settings(f"{server.url}/chat/completions/", generating_args=sampling))
    assert outcome.score == 0.0
    sent = {name: value for name, value in server.asked[0].items() if name not in ("model", "messages")}
    assert sent == {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "stop": ["."]}


@pytest.mark.parametrize(
    ("acts", "retries"),
    [
        ([Act(b"[" * 100_000)], 1),
        ([BROKEN, BUSY, BROKEN], 3),
        ([CLOSES], 1),
        ([says("perhaps")], 1),
        ([says(None)], 1),
        ([says("<think>yes", finish_reason="length")], 1),
        ([sends({"choices": [{"message": "yes"}]})], 1),
        ([Act(b"<html>yes</html>", headers={"Content-Type": "text/html"})], 1),
        ([BUSY, says("perhaps")], 2),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_goes_wrong_is_asked_again(acts: list[Act], retries: int) -> None:
    with judge_server(*acts, says("yes")) as server:
        (outcome,) = judged(settings(server.url))
    assert (outcome.score, outcome.failure) == (1.0, None)
    assert outcome.metrics["judge_retries"] == retries and len(server.asked) == retries + 1


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (BUSY, "429"),
        (BROKEN, "503"),
        (CLOSES, "APIConnectionError"),
        (says("it depends"), "the judge gave no verdict after 2 retries: it says neither yes nor no. The last reply"),
        (says("<think>hm", finish_reason="length"), "and was cut off at its limit (generating_args.max_new_tokens)"),
        (Act(b"<html>"), "an empty reply"),
    ],
    ids=["429", "503", "closes", "nonsense", "cut", "html"],
)
def test_what_goes_wrong_every_time_is_the_failure_of_the_answer(act: Act, reason: str) -> None:
    with judge_server(act) as server:
        (outcome,) = judged(settings(server.url, judge_max_retries=2))
    assert math.isnan(outcome.score) and outcome.failure is not None and reason in outcome.failure
    assert len(server.asked) == 3


def test_a_judge_that_refuses_or_is_gone_fails_the_answer() -> None:
    with judge_server(sends({"error": {"message": "no such model"}}, 404)) as server:
        (outcome,) = judged(settings(server.url))
    assert outcome.failure is not None and "the judge m at http://127.0.0.1" in outcome.failure
    assert "no such model" in outcome.failure and len(server.asked) == 1
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
        (outcome,) = judged(settings(url, judge_max_retries=0))
    assert outcome.failure is not None and f"the judge m at {url}: APIConnectionError" in outcome.failure


def test_a_request_that_hangs_is_sent_again_and_one_that_always_hangs_fails() -> None:
    with judge_server(HANGS, says("yes")) as server:
        (outcome,) = judged(settings(server.url, judge_request_timeout_s=1.0, judge_max_retries=100))
    assert outcome.score == 1.0 and outcome.metrics["judge_retries"] >= 1
    with judge_server(HANGS) as server:
        (outcome,) = judged(settings(server.url, timeout_s=1.0))
    assert outcome.failure is not None


def test_of_several_answers_each_has_its_own_verdict_and_its_own_failure() -> None:
    def act(body: dict[str, Any]) -> Act:
        answer = body["messages"][0]["content"].rpartition(" ")[2]
        return sends({"error": "bad"}, 400) if answer == "bad" else says("yes" if answer == "42" else "no")

    with judge_server(choose=act) as server:
        outcomes = judged(settings(server.url), "42", "41", "bad", "42")
    assert [outcome.score for outcome in outcomes if outcome.failure is None] == [1.0, 0.0, 1.0]
    assert "400" in str(outcomes[2].failure)


def test_no_more_requests_are_in_flight_than_the_processes_may_have_together() -> None:
    with judge_server(says("yes")) as server:
        outcomes = judged(settings(server.url, judge_max_requests=6, world_size=3), *("42",) * 12)
    assert [outcome.score for outcome in outcomes] == [1.0] * 12 and len(server.asked) == 12
    assert server.most_in_flight <= 2


def test_a_worker_whose_loop_was_lost_asks_again_on_another() -> None:
    with judge_server(says("yes")) as server:
        worker = RewardWorker("math", settings(server.url))
        sample = RewardInput("", "42", "42")
        (before,) = worker.score([sample])
        worker._loop = None
        (after,) = worker.score([sample])
    assert before is not None and after is not None and (before.score, after.score) == (1.0, 1.0)


def test_a_key_of_the_environment_is_sent_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "key-654321")
    with judge_server(sends({"error": {"message": "key-654321 is no good"}}, 401)) as server:
        config = settings(server.url)
        (outcome,) = judged(config)
    assert server.headers[0]["authorization"] == "Bearer key-654321"
    assert outcome.failure is not None and "*** is no good" in outcome.failure and "654321" not in outcome.failure


def run_with(**rewards: RewardConfig) -> RLVRConfig:
    return RLVRConfig.model_construct(rewards=rewards)


def test_a_judge_that_does_not_answer_is_found_before_the_run() -> None:
    with judge_server(says("yes")) as server:
        there = settings(server.url)
        assert unreachable_judges(run_with(math=there, code=there)) == []
    (said,) = unreachable_judges(run_with(math=there))
    assert said.startswith(f"rewards.math.judge_api_url: the judge m at {server.url} cannot be reached: ")
    assert said.endswith(". Start it, or correct the address.")
