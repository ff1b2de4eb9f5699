"""Names, looked for in sources that are not imported."""

from tests.helpers.unimported.sources import Sources


def test_a_name_is_found_where_it_is_bound_and_nowhere_else() -> None:
    text = "try:\n    from b import c\nexcept ImportError:\n    c = None\ndef f(): g = 1\nclass K: h = 1\nx, y = 1, 2\n"
    sources = Sources({"a/__init__.py": text, "a/b.py": "from a.d import *", "a/d.py": "z: int = 3"})
    assert all(sources.has("a", name) for name in ("c", "f", "K", "x", "y", "b", ""))
    assert sources.has("a.b", "z")
    assert not any(sources.has(module, name) for module, name in (("a", "g"), ("a", "h"), ("a.e", ""), ("a.b", "c")))


def test_a_name_that_a_module_takes_from_one_without_it_is_not_found() -> None:
    sources = Sources({"a.py": "from b import x, y", "b.py": "x = 1"})
    assert sources.has("a", "x")
    assert not sources.has("a", "y")


def test_modules_that_take_all_names_of_each_other_have_those_that_either_binds() -> None:
    sources = Sources({"a.py": "from b import *\nx = 1", "b.py": "from a import *\ny = 2"})
    assert all(sources.has(module, name) for module in ("a", "b") for name in ("x", "y"))
    assert not sources.has("a", "z")


def test_all_modules_below_a_package_are_listed() -> None:
    sources = Sources({"a/__init__.py": "", "a/b.py": "", "a/c/d.py": "", "ab.py": ""})
    assert sources.below("a") == ["a", "a.b", "a.c.d"]
