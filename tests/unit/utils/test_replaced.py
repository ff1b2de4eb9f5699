from types import SimpleNamespace

import pytest

from roll.utils.imports import replaced


class Base:
    @staticmethod
    def method() -> str:
        return "real"


class Derived(Base):
    pass


def test_an_attribute_of_its_own_is_put_back_also_after_an_error() -> None:
    owner = SimpleNamespace(number=1)
    with pytest.raises(ZeroDivisionError), replaced(owner, "number", 2):
        assert owner.number == 2
        _ = 1 / 0
    assert owner.number == 1


def test_an_inherited_attribute_is_inherited_again() -> None:
    with replaced(Derived, "method", lambda: "other"):
        assert (Derived.method(), Base.method()) == ("other", "real")
    assert Derived.method() == "real" and "method" not in vars(Derived)


def test_a_static_method_of_its_own_stays_one() -> None:
    with replaced(Base, "method", lambda: "other"):
        assert Base.method() == "other"
    assert Base().method() == "real"


def test_a_name_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(AttributeError), replaced(SimpleNamespace(), "number", 2):
        pass
