"""Restarts that do not begin, and what is said of those that do."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray.exceptions import GetTimeoutError, RayActorError

from roll.distributed.executor.processes.worker_process import Failure
from roll.distributed.executor.rollout import engines as engine_recovery
from roll.distributed.executor.rollout.engines import MAX_RESTARTS, EngineRecovery, RecoverySettings
from roll.errors import WorkerError


class OneEngine:
    """What a recovery asks of a cluster before it restarts anything."""

    role = "reward_model"

    def __len__(self) -> int:
        return 1


def test_an_engine_that_is_restarted_has_its_own_word_on_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a healthy one, one that hangs in a process that goes on, one whose process is stopped, one that is new."""
    hangs = Failure(1, "the engine hangs: no sign of life for 1 min")
    answers = [(True, None), (True, hangs), (GetTimeoutError(), None), (False, None)]

    def handle(is_built: object, health: object) -> SimpleNamespace:
        return SimpleNamespace(
            is_built=SimpleNamespace(remote=lambda: is_built), call=SimpleNamespace(remote=lambda method: health)
        )

    class Engines(OneEngine):
        workers = SimpleNamespace(handles=[handle(*answer) for answer in answers])

        def __len__(self) -> int:
            return len(answers)

    monkeypatch.setattr(engine_recovery, "_answer", lambda ref: ref)
    recovery = EngineRecovery(cast(Any, Engines()), RecoverySettings("none", [()] * len(answers)))
    monkeypatch.setattr(recovery, "_restart", lambda rank: None)
    recovery.notice()
    recovery.join()
    assert [record.getMessage() for record in caplog.records] == [
        "reward_model rank 1 is restarted: the engine hangs: no sign of life for 1 min",
        "reward_model rank 2 is restarted: no reply within 10 s",
        "reward_model rank 3 is restarted: its process has ended, and a new one replaced it",
    ]


def test_an_engine_that_died_more_often_than_ray_starts_one_is_given_up_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray says of one that is to come back only that it is not there yet."""
    recovery = EngineRecovery(cast(Any, OneEngine()), RecoverySettings("none", [()]))
    handle = SimpleNamespace(is_built=SimpleNamespace(remote=lambda: None))
    monkeypatch.setattr(OneEngine, "workers", SimpleNamespace(handles=[handle]), raising=False)
    monkeypatch.setattr(recovery._is_closing, "wait", lambda seconds: None)
    answers: list[object] = []

    def get(ref: None, timeout: float) -> bool:
        answers.append(ref)
        if len(answers) < 3:
            raise RayActorError
        return False

    monkeypatch.setattr(engine_recovery.ray, "get", get)
    for number in range(1, MAX_RESTARTS + 2):
        answers.clear()
        assert recovery.lost(0) is True
        restart = recovery._restarts[0]
        if number <= MAX_RESTARTS:
            with pytest.raises(AttributeError):  # it is there; what is built in it this cluster does not say
                restart.result(60)
            assert len(answers) == 3
            del recovery._restarts[0]
        else:
            assert isinstance(restart.exception(60), WorkerError)
            assert "died in restart (the limit per engine is 3)" in str(restart.exception())
            assert len(answers) == 1
            assert recovery.all_wait() is True
    recovery.join()
