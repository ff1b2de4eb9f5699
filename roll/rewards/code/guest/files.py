"""Files of tests, loaded against an answer."""

import ast
import builtins
import importlib
import importlib.abc
import importlib.util
import inspect
import linecache
import sys
import types

from names import LIBRARIES, common_names

COMMON = common_names()
TOOLS = {*COMMON, *LIBRARIES, *dir(builtins)}


class Absent(BaseException):
    """Somebody used what the answer does not define. No `except Exception` of the tests catches it, and no
    `raises(Exception)` takes it for the error that it waits for."""


class Fault(BaseException):
    """The tests themselves cannot be run, whatever the answer is; the text says why."""


class Stub:
    """A name that the answer does not define."""

    __slots__ = ()


def _use(self, *arguments, **keywords):
    raise Absent("the answer does not define it")


USED = """
getattribute setattr call eq ne lt le gt ge hash bool str repr len iter next contains getitem setitem int float index
neg abs round enter add sub mul truediv floordiv mod pow and or radd rsub rmul rtruediv instancecheck mro_entries
"""
for _name in USED.split():
    setattr(Stub, f"__{_name}__", _use)


class SolutionModule(types.ModuleType):
    """Module that `import solution` gives the tests. `get` returns the value of a name. A star imports nothing from it:
    names that a file takes from the answer are there before its first line, and those that it binds stay its own."""

    def __init__(self, get):
        super().__init__("solution")
        vars(self).update(_get=get, __all__=[])

    def __getattr__(self, name):
        """Return a name of the answer. Whatever goes wrong on the other side, the answer does not have it."""
        if is_dunder(name):
            raise AttributeError(name)
        try:
            return self._get(name)
        except BaseException as error:
            raise Absent(f"the answer defines no {name}") from error


class File:
    """Test file: facts from `Suite` of suites.py about its text, and the function that the row names."""

    def __init__(self, index, text, takes, bound, libraries, local_names, called, asserts, collects, function):
        self.index, self.text, self.name = index, text, f"case_{index}"
        self.asserts, self.collects, self.function = asserts, collects, function
        self.bound, self.called, self.local_names = set(bound), set(called), set(local_names)
        self.takes = {name for name in takes if not is_dunder(name) and self.is_answers(name)}
        self.libraries = {name: LIBRARIES[name] for name in libraries}

    def is_answers(self, name):
        return name not in TOOLS or name in self.local_names

    def check_imports(self):
        """Raises Fault for an import that fails. It is called before the answer is asked anything."""
        imports = [node for node in ast.parse(self.text).body if isinstance(node, ast.Import | ast.ImportFrom)]
        text = "\n".join(ast.unparse(node) for node in imports if not is_of_answer(node))
        try:
            for library in self.libraries.values():
                importlib.import_module(library)
            TextLoader("imports.py", text).exec_module(types.ModuleType("imports"))
        except Exception as error:
            raise Fault(f"{type(error).__name__}: {error}") from error

    def load(self, solution, names, built_in=()):
        """Its module. `names`: those that it finds without importing them; `built_in`: what is another one there than
        Python's."""
        loader = TextLoader(f"{self.name}.py", self.text)
        module = types.ModuleType(self.name)
        provided = {name: value for name, value in COMMON.items() if not self.is_answers(name)}
        every = {**vars(builtins), **dict(built_in)}  # a name that is the answer's and that it does not define is none
        own = {name: value for name, value in every.items() if name not in self.local_names}
        given = {**provided, **names}
        early = {
            name: value for name, value in given.items() if name not in self.bound
        }  # else tests change their order
        vars(module).update(early, __builtins__={**own, **given}, __file__=loader.get_filename(self.name))
        module.__spec__ = importlib.util.spec_from_loader(module.__name__, loader)
        sys.modules["solution"], sys.modules[module.__name__] = solution, module
        vars(module).update({name: importlib.import_module(library) for name, library in self.libraries.items()})
        loader.exec_module(module)
        return module

    def check_of(self, module, candidate):
        """HumanEval's check(candidate), as a function without arguments; None if the file has none, or calls it."""
        check = vars(module).get("check")
        is_own = inspect.isfunction(check) and "check" not in self.called
        return (lambda: check(candidate())) if is_own and candidate is not None else None

    def text_of(self, error):
        frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
        lines = [
            frame.code_context[0].strip()
            for frame in frames
            if frame.filename.startswith("case_") and frame.code_context
        ]
        where = f" in: {lines[-1][:200]}" if lines else ""
        try:
            said = str(error)[:200]
        except BaseException:  # it holds an object of the answer, which does not want to be shown
            said = ""
        return f"{type(error).__name__}: {said}{where}"


class TextLoader(importlib.abc.SourceLoader):
    def __init__(self, path, text):
        self._path, self._text = path, text
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)

    def get_filename(self, fullname):
        return self._path

    def get_data(self, path):
        return self._text.encode()


def is_of_answer(node):
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    return any(name.split(".")[0] == "solution" for name in names)


def is_dunder(name):
    return name.startswith("__") and name.endswith("__")
