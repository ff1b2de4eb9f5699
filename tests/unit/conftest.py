"""Fixtures of unit tests."""

import pytest


@pytest.fixture(autouse=True)
def models_of_the_hub_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """YAMLs of tests name models such as org/model, and the hub is off in tests."""
    monkeypatch.setattr("roll.models.hub._is_cached", lambda name, kind: True)
