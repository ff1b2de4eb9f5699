"""The argument names that are read from vLLM's source text."""

import dataclasses

import pytest

from roll.distributed.strategy.vllm.args import engine_argument_kinds


def test_argument_names_are_those_of_the_installed_vllm() -> None:
    arg_utils = pytest.importorskip("vllm.engine.arg_utils", reason="vllm is not installed")
    assert set(engine_argument_kinds() or ()) == {field.name for field in dataclasses.fields(arg_utils.AsyncEngineArgs)}
