"""Restarts that do not begin."""

from typing import Any, cast

import pytest

from roll.distributed.executor.rollout.engine_recovery import EngineRecovery, RecoverySettings


class OneEngine:
    """What a recovery asks of a cluster before it restarts anything."""

    role = "reward_model"

    def __len__(self) -> int:
        return 1


def test_engines_that_end_with_the_run_are_not_said_to_be_restarted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recovery = EngineRecovery(cast(Any, OneEngine()), RecoverySettings("none", [()]))
    monkeypatch.setattr(recovery, "_dead_ranks", lambda: {0})
    recovery.close()
    recovery.notice()
    recovery.join()
    assert recovery.num_restarts == 0 and "is restarted" not in caplog.text
