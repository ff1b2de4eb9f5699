"""What Prometheus finds when it asks a run."""

import urllib.request
from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.run.tracking.build import make_trackers
from roll.run.tracking.local import PrometheusTracker
from roll.run.tracking.tracker import TrackedRun

pytest.importorskip("prometheus_client")


def asked(port: int) -> dict[str, str]:
    """The samples of the page, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_the_newest_step_is_served_on_loopback_until_the_run_ends(tmp_path: Path) -> None:
    tracker = PrometheusTracker(TrackedRun('a "run"', tmp_path, {}), {"port": 0})
    try:
        assert asked(tracker.port) == {}
        tracker.log(1, {"rollout/reward_mean": 0.25, "val/x": 1.0})
        tracker.log(
            2, {"rollout/reward_mean": 0.5, "busy/rewards.sort_fraction": 0.125, "busy/rewards_sort_fraction": 9}
        )
        assert asked(tracker.port) == {
            'roll_step{run="a \\"run\\""}': "2.0",
            'roll_rollout_reward_mean{run="a \\"run\\""}': "0.5",
            'roll_busy_rewards_sort_fraction{run="a \\"run\\""}': "0.125",
        }
    finally:
        port = tracker.port
        tracker.close()
    with pytest.raises(OSError, match="refused"):
        asked(port)


def test_a_port_that_is_taken_ends_the_run_in_words(tmp_path: Path) -> None:
    tracker = PrometheusTracker(TrackedRun("a", tmp_path, {}), {"port": 0})
    try:
        with pytest.raises(ConfigError, match="track_with: prometheus cannot start. OSError: .*in use"):
            make_trackers(["prometheus"], {"prometheus": {"port": tracker.port}}, tmp_path, {})
    finally:
        tracker.close()
