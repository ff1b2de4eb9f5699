"""Files that are not on this machine, by fsspec: s3://, gs://, hdfs://, https:// and what else a package adds to it."""

import functools
import glob
import re
import tempfile
from typing import IO, Any

from roll.errors import ConfigError, describe
from roll.utils.secrets import mask

_URL = re.compile(r"([A-Za-z][\w+.-]*)://")
_LOCAL = ("file", "local")
_WITHOUT_LISTING = ("http", "https")  # a ? is part of an address there, and a folder's page holds any links
_CHUNK_BYTES = 1 << 20


def protocol_of(name: str) -> str | None:
    """Example: "s3" of s3://bucket/rows.jsonl; None of a path, and of file:// before one."""
    match = _URL.match(name)
    return None if match is None or match[1] in _LOCAL else match[1]


def local_path(name: str) -> str:
    """A path without file:// before it."""
    match = _URL.match(name)
    return name if match is None or match[1] not in _LOCAL else name[match.end() :]


def missing_package(protocol: str) -> str | None:
    """Return what must be installed before files of this protocol can be read, None if nothing is missing. Raises
    ConfigError for an unknown protocol."""
    import fsspec

    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        return str(error)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return None


def expand(url: str) -> list[str]:
    """The files that a URL stands for, sorted: itself, those that match its wildcards, or those in the folder that it
    is. Raises ConfigError where it cannot be reached, or there are none."""
    try:
        files, path = _filesystem(url)
        if protocol_of(url) in _WITHOUT_LISTING:
            return [url]
        if glob.has_magic(path) and not files.exists(path):
            urls = [str(each) for each in files.glob(path)]
            urls = [each for each in urls if files.isfile(each)]
        elif files.isdir(path):
            urls = [str(each["name"]) for each in files.ls(path, detail=True) if each["type"] == "file"]
        elif files.exists(path):
            return [url]
        else:
            urls = []
        urls = sorted(str(files.unstrip_protocol(each)) for each in urls)
    except Exception as error:  # of whatever package reads that protocol
        raise ConfigError(f"{mask(url)} cannot be reached: {mask(_why(error))}") from error
    if not urls:
        raise ConfigError(f"there is no file {mask(url)}")
    return urls


@functools.cache
def _copy(url: str) -> IO[bytes]:
    """A copy that has no name, so that it goes with this process, however it ends. Fetched once."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115  # it stays open for the next reader
    try:
        files, path = _filesystem(url)
        with files.open(path, "rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                copy.write(chunk)
    except Exception as error:
        copy.close()
        raise ConfigError(f"{mask(url)} cannot be read: {mask(_why(error))}") from error
    return copy


def fetch(url: str) -> IO[bytes]:
    """The contents, from the beginning. Raises ConfigError."""
    copy = _copy(url)
    copy.seek(0)
    return copy


def _why(error: Exception) -> str:
    """fsspec says of a server that refuses, or does not answer, that there is no such file; the cause says what was."""
    return describe(error.__cause__ or error) if isinstance(error, FileNotFoundError) else describe(error)


def _filesystem(url: str) -> tuple[Any, str]:
    """fsspec's object for what is there, and the path in it."""
    import fsspec

    return fsspec.url_to_fs(url)
