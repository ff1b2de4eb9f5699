"""Calls of an engine of a few lines, held against its definitions."""

import ast

import pytest

from tests.helpers.unimported.call_check import CallCheck
from tests.helpers.unimported.sources import Sources
from tests.helpers.unimported.values import Scope

ENGINE = """
from dataclasses import dataclass, field
from typing import ClassVar, Self
import outside

def run(model, steps=1, *, seed): ...
def open_ended(model, **options): ...
def handed_on(model, **options):
    options.setdefault("name", "x")
    return run(model, **options)
def watched(**options):
    log(options)
    return run("m", **options)
async def later() -> "Engine": ...

@dataclass
class Base:
    model: str
    kind: ClassVar[str] = "base"
    dtype: str = "bf16"

@dataclass
class Arguments(Base):
    seed: int = 0
    port: int = field(init=False)
    names: list[str] = field(default_factory=list)

class Model(BaseModel):
    bucket: int = Field(5, alias="stage3_bucket")
    path: str = Field(...)

class Far(outside.Thing):
    pass

class Engine:
    def __init__(self, arguments: Arguments):
        self.arguments = arguments
    @classmethod
    def of(cls, model, size=1) -> Self: ...
    @staticmethod
    def check(model): ...
    @property
    def client(self) -> "Client": ...
    def sleep(self, level): ...

class Client:
    def send(self, *messages, to="all"): ...
"""


def faults(code: str) -> list[str]:
    """What is wrong with the calls of a module of ours; only what follows the line number."""
    head = "import engine\nfrom engine import *\n"
    check = CallCheck(Sources({"engine.py": ENGINE, "ours.py": head + code}))
    return [fault.split(": ", 1)[1] for fault in check.faults("ours", "engine")]


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        ("run('m', seed=1)", []),
        ("engine.run('m', 2, seed=1)", []),
        ("run('m', sed=1)", ["run: no parameter sed", "run: seed is missing"]),
        ("run('m', 2, 3, seed=1)", ["run: 3 by place, takes 2"]),
        ("run('m', model='n', seed=1)", ["run: model twice"]),
        ("run(*rows, **options)", []),
        ("run(*rows, sed=1)", ["run: no parameter sed"]),
        ("open_ended('m', anything=1)", []),
        ("open_ended(anything=1)", ["open_ended: model is missing"]),
    ],
)
def test_a_function_gets_what_it_takes(call: str, wrong: list[str]) -> None:
    assert faults(call) == wrong


def test_what_goes_on_to_another_function_must_be_what_that_takes() -> None:
    assert faults("handed_on('m', seed=1, name='x', steps=2)") == []
    assert faults("handed_on('m', sed=1)") == ["handed_on: no parameter sed"]
    assert faults("watched(sed=1)") == []  # options may be read in ways that are not seen


def test_a_dataclass_has_the_fields_of_its_bases() -> None:
    assert faults("Arguments('m', dtype='fp32', seed=1, names=[])") == []
    assert faults("Arguments(dtype='fp32')") == ["Arguments: model is missing"]
    assert faults("Arguments('m', port=1, kind='x')") == [
        "Arguments: no parameter kind",
        "Arguments: no parameter port",
    ]


def test_a_field_of_a_model_goes_by_its_alias_too() -> None:
    assert faults("Model(stage3_bucket=1, path='p')") == []
    assert faults("Model(bucket=1, path='p')") == []
    assert faults("Model(buckets=1)") == ["Model: no parameter buckets", "Model: path is missing"]


def test_a_class_whose_base_is_elsewhere_may_take_anything() -> None:
    assert faults("Far(anything=1)") == []


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("Engine.of('m').sleep(levels=1)", ["no parameter levels", "level is missing"]),
        ("Engine.check('m', 2)", ["2 by place, takes 1"]),
        ("def f(e: Engine | None):\n    e.client.send(1, 2, too='x')", ["no parameter too"]),
        ("async def f():\n    (await later()).sleep()", ["level is missing"]),
        ("class Ours:\n  _e: Engine\n  def f(self):\n    e = self._e\n    e.sleep(1, 2)", ["2 by place, takes 1"]),
        ("class Ours:\n  def __init__(self, e: Engine):\n    self.e = e\n  def f(self):\n    self.e.sleep()",
         ["level is missing"]),
        ("class Ours(Engine):\n  def f(self):\n    self.sleep()\n    super().sleep(1)", ["level is missing"]),
        ("class Ours(Engine): pass\nOurs(argument=1)", ["no parameter argument", "arguments is missing"]),
        ("def f(engine):\n    engine.run()", []),
    ],
)  # fmt: skip
def test_methods_of_objects_whose_class_is_written_down_get_what_they_take(code: str, wrong: list[str]) -> None:
    assert [fault.split(": ", 1)[1] for fault in faults(code)] == wrong


def test_keys_of_a_dictionary_are_followed_into_the_functions_that_fill_it() -> None:
    code = """
def base(given):
    values = {"dtype": "bf16", **given}
    values["seed"] = 1
    values |= more() if given else {"size": 1}
    return given | values | {"model": "m"}
def more():
    return {"names": []}
def closed():
    Arguments(**{"model": "m"} | more())
    Arguments(**{"modell": "m"})
def use():
    Arguments(**base({}))
"""
    check = CallCheck(Sources({"engine.py": ENGINE, "ours.py": f"from engine import *\n{code}"}))
    keys, is_all = check.keys(ast.parse("base(x)", mode="eval").body, Scope("ours"))
    assert keys == {"dtype", "seed", "size", "names", "model"}
    assert not is_all  # `given` is anything
    assert faults(code) == [
        "Arguments: no parameter modell",
        "Arguments: model is missing",
        "Arguments: no parameter size",
    ]
