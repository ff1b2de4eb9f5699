"""Checks of an entry of custom_envs whose policy calls tools: its servers, its class and its reward."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from roll.configs.problems import Problem
from roll.envs.adapters.harbor import HarborTask, sandbox
from roll.envs.config import EnvConfig, ToolServerConfig
from roll.envs.table import TOOL_CLASSES
from roll.envs.tools.class_tools import method_problems, tool_class
from roll.errors import EnvError
from roll.utils.files import path_info
from roll.utils.imports import file_on_path, is_installed, is_missing, resolve, split
from roll.utils.text import show

TOOL_KEYS = ("tool_servers", "tool_class", "question_key", "reward", "answer_key", "max_result_tokens")
_SCRIPTS = (".py", ".sh", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl")


def tool_loop_problems(at: str, env: EnvConfig) -> Iterator[Problem]:
    if not env.tool_servers and env.tool_class is None:
        yield Problem(
            f"{at}.tool_servers and {at}.tool_class are missing: one says which tools there are.",
            (f"{at}.tool_servers", f"{at}.tool_class"),
        )
    elif env.tasks is None and env.tool_class is None:
        yield Problem(
            f"{at}.tasks is missing: the policy is asked {at}.question_key: {env.question_key} of a task, and without "
            "tasks there is none. Name a file of JSON lines, or package.module:name.",
            (f"{at}.tasks",),
        )
    if env.reward is not None and env.answer_key is not None:
        yield Problem(
            f"{at}.reward and {at}.answer_key both give the reward of an episode. Keep one.",
            (f"{at}.reward", f"{at}.answer_key"),
        )
    if env.reward is None and env.answer_key is None and env.tool_class is None:
        yield Problem(
            f"{at}.reward is missing: nothing gives the reward of an episode. Set reward: module:function, or "
            "answer_key: a column of the tasks, or a tool_class with get_reward().",
            (f"{at}.reward", f"{at}.answer_key", f"{at}.tool_class"),
        )
    for key in ("tool_class", "reward"):
        if (path := getattr(env, key)) is not None and not (key == "tool_class" and path in TOOL_CLASSES):
            yield from path_problems(f"{at}.{key}", path, "Class" if key == "tool_class" else "function")
    for name, server in env.tool_servers.items():
        yield from _server_problems(f"{at}.tool_servers.{name}", server)


def path_problems(key: str, path: str, kind: str) -> Iterator[Problem]:
    """Yield problems with the form of a path module:kind."""
    try:
        if ":" not in path:
            raise ImportError(f"{show(path)} is not module:{kind}")
        split(path)
    except ImportError as error:
        yield Problem(f"{key}: {error}.", (key,))


def _server_problems(at: str, server: ToolServerConfig) -> Iterator[Problem]:
    if (server.command is None) == (server.url is None):
        what = "both say" if server.url is not None else "are missing: one says"
        yield Problem(
            f"{at}.command and {at}.url {what} where the server is. Set command (with args) for one that is started "
            "here, or url for one that runs already.",
            (f"{at}.command", f"{at}.url"),
        )
    elif server.command is not None and len(server.command.split()) > 1:
        first, *rest = server.command.split()
        yield Problem(
            f"{at}.command: {show(server.command)} is one word, the program. Write command: {first} and args: "
            f"[{', '.join(rest)}].",
            (f"{at}.command",),
        )
    elif server.url is not None and not server.url.startswith(("http://", "https://")):
        yield Problem(f"{at}.url: {show(server.url)} does not begin with http:// or https://.", (f"{at}.url",))


# --- what this machine and the user's code say; no server is started


def tool_code_problems(at: str, env: EnvConfig) -> Iterator[Problem]:
    """Packages, commands, the class and the reward that the entry names."""
    if env.tool_servers and not is_installed("mcp"):
        yield Problem(
            f"{at}.tool_servers needs the package mcp. Run pip install -e '.[mcp]' in the checkout.",
            (f"{at}.tool_servers",),
            "machine",
        )
    for name, server in env.tool_servers.items():
        if server.command is not None:
            yield from command_problems(f"{at}.tool_servers.{name}.command", [server.command, *server.args])
    if env.reward is not None:
        yield from code_path_problems(f"{at}.reward", env.reward, is_called=True)
    if env.tool_class is not None:
        yield from _class_problems(at, env.tool_class)


def command_problems(key: str, words: Sequence[str]) -> Iterator[Problem]:
    """Yield what a command names that is not on this machine: its program, and scripts and modules that it runs. What
    is in braces is filled in later."""
    program, *others = [word for word in words if "{" not in word] or [""]
    if program == words[0] and shutil.which(file_on_path(program)) is None:
        yield Problem(f"{key}: there is no program {show(program)} on the PATH.", (key,), "place")
    for word in others:
        if PurePath(word).suffix in _SCRIPTS and not path_info(file_on_path(word)).is_file:
            yield Problem(
                f"{key}: there is no file {word}, neither in {Path.cwd()} nor beside the YAML.", (key,), "place"
            )


def code_path_problems(key: str, path: str, is_called: bool = False) -> Iterator[Problem]:
    """Whether module:name can be imported, and called."""
    try:
        found = resolve(path)
    except ImportError as error:
        yield Problem(f"{key}: {error}.", (key,), "place" if is_missing(path) else "run")
        return
    if is_called and not callable(found):
        yield Problem(f"{key}: {path} cannot be called.", (key,))


def _class_problems(at: str, path: str) -> Iterator[Problem]:
    key = f"{at}.tool_class"
    try:
        cls = tool_class(path)
    except (ImportError, EnvError) as error:
        yield Problem(f"{key}: {error}.", (key,), "place" if is_missing(path) else "run")
        return
    for fault in method_problems(cls):
        yield Problem(f"{key}: {fault}.", (key,))
    if cls is HarborTask:
        try:
            sandbox()
        except EnvError as error:
            yield Problem(f"{key}: {error}.", (key,), "machine")


def tool_reports(at: str, env: EnvConfig) -> Iterator[str]:
    if env.tool_servers:
        names, verb = ", ".join(env.tool_servers), "are" if len(env.tool_servers) > 1 else "is"
        yield f"Not checked here: {at}.tool_servers: {names} {verb} asked for tools when an episode begins."
