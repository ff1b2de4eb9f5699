"""`code_url`: a service that runs code, well and badly behaved, on this machine's loopback."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from roll.rewards.base import RewardInput, RewardOutcome
from roll.rewards.code import remote
from roll.rewards.config import RewardConfig
from roll.rewards.worker import RewardWorker

Reply = tuple[int, bytes]
ANSWER = "```python\ndef f(x):\n    return 2 * x\nif __name__ == '__main__':\n    print(f(int(input())))\n```"
STDIN = {"test_cases": [{"stdin": "1", "expected_stdout": "2"}, {"stdin": "2", "expected_stdout": "5"}]}
CALLS = {"test_cases": {"inputs": [[1], ["a"], [3]], "outputs": [2, "aa", 7], "fn_name": "f"}}
ASSERTS = {"test_cases": ["assert f(1) == 2", "assert f(1) == 3", "def test_f():\n    assert f(2) == 5"]}


class Service:
    """Answers with what `behave` makes of a request; keeps the requests."""

    def __init__(self, behave: Callable[[dict[str, Any], int], Reply]):
        self.requests: list[dict[str, Any]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.requests.append(body)
                status, text = behave(body, len(service.requests))
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/run?key=hunter2"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


Start = Callable[[Callable[[dict[str, Any], int], Reply]], Service]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(remote, "PAUSE_S", 0.01)
    monkeypatch.setenv("no_proxy", "*")
    services: list[Service] = []

    def start_one(behave: Callable[[dict[str, Any], int], Reply]) -> Service:
        services.append(Service(behave))
        return services[-1]

    yield start_one
    for service in services:
        service.server.shutdown()
        service.server.server_close()


def really(body: dict[str, Any], number: int) -> Reply:
    """Runs the program; it is this test's own."""
    command = [sys.executable, "-I", "-c", body["code"]]
    done = subprocess.run(command, input=body["stdin"], capture_output=True, text=True)
    status = "Success" if done.returncode == 0 else "Failed"
    return said(status, run_result={"stdout": done.stdout, "stderr": done.stderr, "return_code": done.returncode})


def said(status: str, **more: Any) -> Reply:
    return 200, json.dumps({"status": status, **more}).encode()


def outcome(url: str, row: dict[str, Any], answer: str = ANSWER, **keys: Any) -> RewardOutcome:
    settings = {"timeout_s": 900, "reward_type": "soft", **keys}
    worker = RewardWorker("code", RewardConfig(reward="code_sandbox", use_local=False, code_url=url, **settings))
    (found,) = worker.score([RewardInput("", answer, payload=row)])
    assert found is not None
    return found


@pytest.mark.parametrize(("row", "score"), [(STDIN, 1 / 2), (CALLS, 2 / 3), (ASSERTS, 1 / 3)])
def test_cases_are_judged_by_what_the_service_says_of_the_program(start: Start, row: Any, score: float) -> None:
    found = outcome(start(really).url, row)
    assert found.failure is None and found.score == pytest.approx(score)


def test_the_request_has_the_fields_of_roll_s_service(start: Start) -> None:
    service = start(really)
    outcome(service.url, STDIN, reward_args={"time_limit_s": 7})
    assert [request["stdin"] for request in service.requests] == ["1", "2"]
    fields = {"code", "language", "stdin", "expected_stdout", "compile_timeout", "run_timeout"}
    assert service.requests[0].keys() == fields
    assert service.requests[0]["language"] == "python" and service.requests[0]["run_timeout"] == 7


def test_a_program_that_ends_before_its_asserts_has_not_passed_them(start: Start) -> None:
    answer = "```python\nimport os\ndef f(x): os._exit(0)\n```"
    assert outcome(start(really).url, {"test_cases": ["assert f(1) == 2"]}, answer).score == 0.0


def test_a_fault_that_goes_by_is_asked_again(start: Start) -> None:
    def at_third(body: dict[str, Any], number: int) -> Reply:
        return really(body, number) if number >= 3 else (503, b"busy") if number == 1 else said("SandboxError")

    service = start(at_third)
    found = outcome(service.url, {"test_cases": [{"stdin": "1", "expected_stdout": "2"}]})
    assert (found.score, found.failure, len(service.requests)) == (1.0, None, 3)


@pytest.mark.parametrize(
    ("reply", "text", "requests"),
    [
        ((500, b"broken"), "HTTP Error 500", 3),
        ((404, b"where?"), "HTTP Error 404", 1),
        ((200, b"<html>"), "Expecting value", 3),
        ((200, b"\xff\xfe\x00"), "decode", 3),
        ((200, b"[" * 100_000), "recursion", 3),
        ((200, b"[1]"), "status None", 3),
        (said("SandboxError", message="no space left"), "no space left", 3),
        (said("Perhaps"), "status 'Perhaps'", 3),
        (said("Success"), "no run_result.stdout", 3),
        (said("Success", run_result=5), "no run_result.stdout", 3),
    ],
)
def test_nonsense_is_a_failure_and_no_zero(start: Start, reply: Reply, text: str, requests: int) -> None:
    service = start(lambda body, number: reply)
    found = outcome(service.url, STDIN)
    assert found.failure is not None and "gave no verdict" in found.failure and text in found.failure
    assert len(service.requests) == requests
    assert "hunter2" not in found.failure


def test_a_service_that_is_down_is_a_failure(start: Start) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        found = outcome(f"http://127.0.0.1:{nobody.getsockname()[1]}", STDIN)
    assert found.failure is not None and "Connection refused" in found.failure


def test_a_service_that_says_nothing_is_a_failure_within_the_time_of_the_answer(start: Start) -> None:
    release = threading.Event()

    def wait(body: dict[str, Any], number: int) -> Reply:
        release.wait(300)
        return said("Failed")

    service = start(wait)
    try:
        found = outcome(service.url, STDIN, reward_args={"total_time_s": 1.0})
    finally:
        release.set()
    assert found.failure is not None and "gave no verdict" in found.failure


def test_a_reply_without_end_is_a_failure(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LONGEST_REPLY", 1000)
    found = outcome(start(lambda body, number: (200, b"x" * 2000)).url, STDIN)
    assert found.failure is not None and "a reply of more than 1000 bytes" in found.failure


def test_an_answer_that_fails_there_is_a_zero(start: Start) -> None:
    found = outcome(start(lambda body, number: said("Failed", run_result={"stderr": "ValueError"})).url, STDIN)
    assert (found.score, found.failure) == (0.0, None)
    assert found.extra["why"] == "case 1: failed: ValueError"
