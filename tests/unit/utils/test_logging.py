import io
import logging
import sys

import pytest

from roll.utils.logging import configure_logging, masked_output, toned


@pytest.fixture(autouse=True)
def restore_root_logger():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_what_libraries_say_comes_once_and_without_secrets(capsys):
    """Also of one that sets up its own handler when it is imported, and of one that writes to stderr itself."""
    with masked_output():
        configure_logging("INFO", tag="driver")
        library = logging.getLogger("huggingface_hub")
        library.addHandler(logging.StreamHandler())
        library.propagate = False
        logging.getLogger("huggingface_hub.utils").warning("retrying http://me:S3cr3t@h/x")
        print("curl --token S3cr3t", file=sys.stderr)
    err = capsys.readouterr().err
    assert err.count("retrying http://***@h/x") == 1 and "curl --token ***" in err and "S3cr3t" not in err


def test_a_traceback_that_ends_the_program_has_no_secrets(capsys):
    with pytest.raises(SystemExit) as ended, masked_output():
        raise ValueError("http://me:S3cr3t@h")
    err = capsys.readouterr().err
    assert ended.value.code == 1 and "ValueError: http://***@h" in err


def test_secrets_of_the_environment_are_masked_wherever_they_turn_up(capsys, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "sesame-open")
    monkeypatch.setenv("PWD", "/home/me/runs")
    configure_logging("INFO", tag="driver")
    logging.getLogger("roll.test").info("got sesame-open in /home/me/runs")
    assert "got *** in /home/me/runs" in capsys.readouterr().err


def test_records_reach_stderr_and_the_file_named_by_the_tag_without_secrets(tmp_path, capsys):
    path = configure_logging("INFO", tmp_path / "logs", "actor_train-3", secrets=["sk-1234567890"])
    logging.getLogger("roll.test").info("key %s", "sk-1234567890")
    logging.getLogger("roll.test").debug("not shown")
    assert path == tmp_path / "logs" / "actor_train-3.log"
    for text in ((tmp_path / "logs" / "actor_train-3.log").read_text(), capsys.readouterr().err):
        assert text.strip().endswith("roll.test: key ***")
        assert "[actor_train-3" in text


def test_configuring_twice_does_not_write_twice(tmp_path, capsys):
    configure_logging("INFO", tmp_path)
    path = configure_logging("INFO", tmp_path)
    logging.getLogger("roll.test").info("once")
    assert path is not None
    assert path.read_text().count("once") == 1
    assert capsys.readouterr().err.count("once") == 1


def test_the_given_terminal_handler_replaces_stderr(tmp_path, capsys):
    seen: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    configure_logging("INFO", None, "driver", terminal=Keep())
    logging.getLogger("roll.test").info("hello")
    assert seen == ["hello"]
    assert capsys.readouterr().err == ""


def test_what_a_model_wrote_steers_no_terminal_wherever_it_is_quoted(tmp_path, capsys):
    path = configure_logging("INFO", tmp_path, "driver")
    try:
        raise ValueError("the answer was \x1b[2J\u202e")
    except ValueError as error:
        logging.getLogger("roll.test").exception("failed: %s \ud800", error)
    assert path is not None
    for text in (path.read_text(), capsys.readouterr().err):
        assert "failed: the answer was \\x1b[2J\\u202e \\ud800\n" in text
        assert "ValueError: the answer was \\x1b[2J\\u202e" in text
        assert not {"\x1b", "\u202e"} & set(text)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colour_and_lines_that_fit_and_nothing_else_does(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    line = f"  name  {'word ' * 40}http://host/{'x' * 130}"
    assert toned(line, "bad", io.StringIO()) == line
    shown = toned(line, "", Terminal()).split("\n")
    assert [part.strip() for part in shown][-1] == f"http://host/{'x' * 130}", "an address stays whole"
    assert all(len(part) <= 120 for part in shown[:-1]) and all(part.startswith(" " * 6) for part in shown[1:])
    assert toned("done", "good", Terminal()) == "\033[1;32mdone\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert toned("done", "good", Terminal()) == "done"
