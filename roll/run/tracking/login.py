"""Whether the services can be used from here, as far as that is known without asking them."""

import netrc
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

_CONNECT_TIMEOUT_S = 10
_UNANSWERED = "or mode: offline in tracker_kwargs, or take it out."


def login_problems(names: tuple[str, ...], settings_of: Callable[[str], Mapping[str, Any]]) -> list[str]:
    """The trackers among these that have no credentials; only what is certain."""
    checks = {"wandb": _wandb_problem, "swanlab": _swanlab_problem}
    found = [checks[name](settings_of(name)) for name in names if name in checks]
    return [problem for problem in found if problem]


def _wandb_problem(settings: Mapping[str, Any]) -> str | None:
    mode = settings.get("mode") or os.environ.get("WANDB_MODE") or "online"
    given = (
        settings.get("api_key"),
        settings.get("settings"),
        *_environment("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"),
    )
    own_files = (Path("wandb/settings"), Path(os.environ.get("WANDB_CONFIG_DIR", "~/.config/wandb"), "settings"))
    if mode != "online" or any(given) or any(_is_file(path) for path in own_files):
        return None
    host = str(settings.get("host") or os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai")
    if _netrc_may_know(urlsplit(host).netloc or host):
        return None
    return (
        f"track_with: wandb has no API key for {host}. Run `wandb login`, or set WANDB_API_KEY or "
        f"tracker_kwargs.api_key, {_UNANSWERED}"
    )


def _swanlab_problem(settings: Mapping[str, Any]) -> str | None:
    mode = settings.get("mode") or os.environ.get("SWANLAB_MODE") or "online"
    given = (settings.get("api_key"), settings.get("login_kwargs"), *_environment("SWANLAB_API_KEY"))
    folders = (Path(".swanlab"), Path(os.environ.get("SWANLAB_SAVE_DIR", "~/.swanlab")), Path("~/.swanlab"))
    if mode not in ("online", "cloud") or any(given) or any(_is_file(folder / ".netrc") for folder in folders):
        return None
    return (
        "track_with: swanlab has no API key. Run `swanlab login`, or set SWANLAB_API_KEY or tracker_kwargs.api_key, "
        f"{_UNANSWERED}"
    )


def check_reachable(address: str) -> None:
    """Raises ConnectionError when nobody listens at an http(s) address: the service's own client would try for
    minutes. Behind a proxy nothing is known."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or getproxies():
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ConnectionError(f"nobody answers at {parts.hostname}:{port} ({error})") from error


def _environment(*names: str) -> tuple[str | None, ...]:
    return tuple(os.environ.get(name) for name in names)


def _netrc_may_know(host: str) -> bool:
    files = [os.environ["NETRC"]] if os.environ.get("NETRC") else ["~/.netrc", "~/_netrc"]
    for file in files:
        try:
            if netrc.netrc(Path(file).expanduser()).authenticators(host):
                return True
        except FileNotFoundError:
            continue
        except (OSError, RuntimeError, netrc.NetrcParseError):
            return True
    return False


def _is_file(path: Path) -> bool:
    try:
        return path.expanduser().is_file()
    except (OSError, RuntimeError):
        return True
