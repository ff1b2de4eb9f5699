"""The program in an answer."""

import pytest

from roll.rewards.code.languages import Code, code_in, fences_of

BOTH = fences_of(("python", "cpp"))
PY, CPP = (lambda text: Code("python", text)), (lambda text: Code("cpp", text))


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("```python\nx = 1\n```", PY("x = 1\n")),
        ("So:\n```python\nx = 1\n```\nDone.", PY("x = 1\n")),
        ("```py\nx\n```", PY("x\n")),
        ("```Python3\nx\n```", PY("x\n")),
        ("```\nx\n```", PY("x\n")),
        ("```cpp\nint x;\n```", CPP("int x;\n")),
        ("```c++\nint x;\n```", CPP("int x;\n")),
        ("```python\na\n```\n```python\nb\n```", PY("b\n")),
        ("```python\na\n```\n```cpp\nb\n```", CPP("b\n")),
        ("```python\na\n```\n```text\nb\n```", PY("a\n")),
        ("```python\na\n```\nOutput:\n```json\n5\n```", PY("a\n")),
        ("```python\na\n```\nExample output:\n```\n5\n```", PY("a\n")),
        ("```\na\n```\n```\nb\n```", PY("b\n")),
        ("```\na\n```\n```python\nb\n```", PY("b\n")),
        ("<answer>```python\nx\n```</answer>", PY("x\n")),
        ("~~~python\nx\n~~~", PY("x\n")),
        ("````python\n```\nx\n````", PY("```\nx\n")),
        ("1. so\n   ```python\n   def f():\n       pass\n   ```", PY("def f():\n    pass\n")),
        ("```python title=a\nx\n```", PY("x\n")),
        ("<think>```python\na\n```</think>```python\nb\n```", PY("b\n")),
        ("<think>```python\na\n```</think>no", None),
        ("<think>```python\na\n```", None),
        ("Code:```python\nx\n```", PY("x\n")),
        ("Here is the code: ```python\nx\n```", PY("x\n")),
        ("**Solution**```py\nx\n```", PY("x\n")),
        ("Code:```\nx\n```", PY("x\n")),
        ("<answer> ```python\nx\n```</answer>", PY("x\n")),
        ("``` python\nx\n```", PY("x\n")),
        ("```\tPython \nx\n```", PY("x\n")),
        ("```{.python}\nx\n```", PY("x\n")),
        ("```{.python .numberLines}\nx\n```", PY("x\n")),
        ("```{python}\nx\n```", PY("x\n")),
        ("```{.cpp}\nx\n```", CPP("x\n")),
        ("```language-c++\nx\n```", CPP("x\n")),
        ("```python:main.py\nx\n```", PY("x\n")),
        ("```python3.11\nx\n```", PY("x\n")),
        ("```python,linenos\nx\n```", PY("x\n")),
        ("```python-repl\n>>> x\n```", None),
        ("- ```python\n  def f():\n      pass\n  ```", PY("def f():\n    pass\n")),
        ("1. ```python\n   def f():\n       pass\n   ```", PY("def f():\n    pass\n")),
        ('```python\ns = "```"\nx\n```', PY('s = "```"\nx\n')),
        ("```python\n# like ```python\nx\n```", PY("# like ```python\nx\n")),
        ("```python\n# the end: ```\nx\n```", PY("# the end: ```\nx\n")),
        ("It ends with ```\nx\n```python\ny\n```", PY("y\n")),
        ("Write ```x``` here.\n```python\ny\n```", PY("y\n")),
        # a fence that is no line of its own ends what nothing else does
        ("```python\nx = 1```", PY("x = 1")),
        ("```python\nx\n``` is the program.", PY("x\n")),
        ("```python\na```\nBetter:\n```python\nb\n```", PY("b\n")),
        ("```python\na\n```\n```python\nb```\nOutput:\n```text\n5\n```", PY("b")),
        ("The ``` mark opens a block.\n```python\nx\n```", PY("x\n")),
        ("> ```python\n> def f():\n>     pass\n> ```", PY("def f():\n    pass\n")),
        ("```python\nx = 1", None),
        ("```python\na\n```\n```python\nb", PY("a\n")),
        ("```python\n\n```", None),
        ("```rust\nx\n```", None),
        ("x = 1", None),
        ("", None),
    ],
)
def test_the_last_block_of_a_known_language_counts(answer: str, code: Code | None) -> None:
    assert code_in(answer, BOTH) == code


def test_without_a_fence_the_answer_is_code_only_where_that_is_asked_for() -> None:
    assert code_in("x = 1", BOTH) is None
    assert code_in("x = 1", BOTH, plain="python") == PY("x = 1\n")
    assert code_in("```text\nx\n```", BOTH, plain="python") is None
    assert code_in("```python\nx", BOTH, plain="python") is None


def test_a_language_that_is_not_listed_is_no_code() -> None:
    assert code_in("```cpp\nint x;\n```", fences_of(("python",))) is None
