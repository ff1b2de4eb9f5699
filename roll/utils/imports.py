"""Finding what a setting names: a built-in name, or `package.module:object` of the user's own."""

import importlib
import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from roll.errors import RollError, describe
from roll.utils.text import show

EXTERNAL_LIB = "ROLL_EXTERNAL_LIB"  # in the environment of every worker and of what it starts: names, with commas


def resolve(name: str, builtins: Mapping[str, str] | None = None) -> object:
    """The object behind a built-in name or a path `package.module:object` (or `package.module.object`). Raises
    ImportError with a text that says which part of the path is wrong; what the module itself raises is the cause."""
    path = (builtins or {}).get(name, name)
    module_name, attributes = split(path, builtins)
    try:
        value: object = _import(module_name)
    except ImportError as error:
        raise ImportError(f"{path}: {error}") from error.__cause__
    for attribute in attributes.split("."):
        try:
            value = getattr(value, attribute)
        except AttributeError:
            place = getattr(sys.modules[module_name], "__file__", None) or "a built-in module"
            raise ImportError(f"{path}: {module_name} has no {attribute} ({place})") from None
    return value


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module that calls sys.exit, or panics in Rust
        text = f"importing {module} failed with {describe(error)}{line_of(error, __file__)}"
        first = module.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name == first and first not in sys.modules:
            text += f"; put {first}.py beside the YAML or on PYTHONPATH, or install {first}"
        raise ImportError(text) from error


def line_of(error: BaseException, caller: str) -> str:
    """Place of an error in the user's file, in brackets; "" if none of it ran. `caller`: the file that called it."""
    frames = traceback.extract_tb(error.__traceback__)
    ran = [f for f in frames if not f.filename.startswith("<frozen") and f.filename not in (importlib.__file__, caller)]
    return f" ({os.path.basename(ran[0].filename)}, line {ran[0].lineno})" if ran else ""


_MOST_FRAMES, _MOST_LINE = 4, 120
_ROLL = str(Path(__file__).parents[1])


def traced(error: BaseException, limit: int = 2000) -> str:
    """`describe`, and below it the lines of the user's code that led to the error, the innermost last; of code that is
    all installed the innermost one. An error that roll raises on purpose has none. `limit`: characters of a message."""
    text = describe(error)
    if isinstance(error, RollError):
        return text
    text = text if len(text) <= limit else text[:limit] + "..."
    frames = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    installed = (_ROLL + os.sep, "<frozen", *(sysconfig.get_path(kind) + os.sep for kind in kinds))
    own = [frame for frame in frames if not frame.filename.startswith(installed)] or frames[-1:]
    shown = own if len(own) <= _MOST_FRAMES else [own[0], *own[1 - _MOST_FRAMES :]]
    lines = (f"{f.filename}:{f.lineno} in {f.name}" + (f": {f.line[:_MOST_LINE]}" if f.line else "") for f in shown)
    return "\n  ".join((text, *lines))


def split(path: str, builtins: Mapping[str, str] | None = None) -> tuple[str, str]:
    """("package.module", "object") of a path. Raises ImportError when it is neither form."""
    module, colon, attributes = path.partition(":")
    if module.endswith(".py") or "/" in module:
        name = Path(module).stem
        meant = f"write {name}:{attributes or 'object'}, with the file beside the YAML or in a folder on PYTHONPATH"
        renamed = "rename it, with letters, digits and _ alone, and write NAME:object"
        raise ImportError(f"{show(path)} is a file: {meant if name.isidentifier() else renamed}")
    if not colon:
        module, _, attributes = path.rpartition(".")
    if not module or not all(part.isidentifier() for part in (module + "." + attributes).split(".")):
        known = f" or one of {', '.join(sorted(builtins))}" if builtins else ""
        own = "for NAME.py beside the YAML write NAME:object"
        raise ImportError(f"{show(path)} is not of the form package.module:object{known}; {own}")
    return module, attributes


def is_missing(path: str) -> bool:
    """True if there is no such module as a path `package.module:object` begins with."""
    return not is_installed(path.partition(":")[0].partition(".")[0])


def import_all(modules: Iterable[str]) -> None:
    """Imports modules for what they do when they are. Raises ImportError that says which, and where it failed."""
    for module in modules:
        _import(module)


def import_external() -> None:
    """Import the modules that the run asks every process to import; their names are in the environment."""
    import_all(filter(None, os.environ.get(EXTERNAL_LIB, "").split(",")))


def is_installed(module: str) -> bool:
    """True if a top-level module can be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def add_folder(folder: Path) -> None:
    """Lets modules of this folder be imported; an installed module of the same name goes first."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def file_on_path(word: str) -> str:
    """A word of a command that names a file of the YAML's folder or of another on the path, as its whole path: the
    command may run in another folder. Any other word as it is."""
    if os.path.isabs(word) or not Path(word).suffix:
        return word
    return place if os.path.isfile(place := place_on_path(word)) else word


def place_on_path(name: str) -> str:
    """The whole path of a file or folder of the YAML's folder or of the path; one that is nowhere as it is."""
    places = (Path(entry).absolute() / name for entry in ("", *sys.path))
    return next((str(place) for place in places if place.exists()), name)


def own_folders(path: Sequence[str] | None = None) -> list[str]:
    """The folders on `path` (of this process) that are neither Python's own nor of installed packages."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    installed = [sysconfig.get_path(kind) for kind in kinds] + [*site.getsitepackages(), site.getusersitepackages()]
    folders = dict.fromkeys(os.path.abspath(entry) for entry in (sys.path if path is None else path))
    return [f for f in folders if os.path.isdir(f) and not any(Path(f).is_relative_to(place) for place in installed)]


def code_folder() -> str | None:
    """The folder that `roll` itself is imported from; None if it is installed, so that every process finds it."""
    home = str(Path(__file__).parents[2])
    return home if home in own_folders([home]) else None


# An attribute of what is not ours, replaced for a while.


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Inside, `owner.name` is `value`. Afterwards it is as before, also where `owner` had only inherited it."""
    before = vars(owner).get(name, _INHERITED)
    getattr(owner, name)  # a name that is not there is a mistake
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


_INHERITED = object()


# Functions and classes that exist in a running program only: in a script, in a notebook, or inside another function.
# They get a name that `resolve` finds, in this process and in the workers of its run.

SCRIPT_MODULE = "roll_script"  # a module without a file


def set_script_code(objects: Mapping[str, object]) -> None:
    """Lets `resolve("roll_script:NAME")` find the objects, and none of those that were set before."""
    if not objects:
        sys.modules.pop(SCRIPT_MODULE, None)
        return
    module = ModuleType(SCRIPT_MODULE, "Functions and classes that the running program defines, by their names.")
    module.__spec__ = ModuleSpec(SCRIPT_MODULE, None)
    vars(module).update(objects)
    sys.modules[SCRIPT_MODULE] = module


def script_code() -> dict[str, object]:
    """Return the values that are set, for processes that this one starts."""
    module = sys.modules.get(SCRIPT_MODULE)
    return {name: value for name, value in vars(module).items() if not name.startswith("__")} if module else {}


@contextmanager
def with_script_code(objects: Mapping[str, object]) -> Iterator[None]:
    before = script_code()
    set_script_code(objects)
    try:
        yield
    finally:
        set_script_code(before)
