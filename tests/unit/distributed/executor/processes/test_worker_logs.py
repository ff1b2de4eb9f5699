"""Logs of workers, copied from a directory in which a worker can put anything."""

import os
from pathlib import Path

from roll.distributed.executor.processes.worker_logs import keep_logs


def test_a_log_is_kept_under_the_name_of_its_worker(tmp_path: Path) -> None:
    source, kept = tmp_path / "source", tmp_path / "kept"
    source.mkdir()
    (source / "worker-1.out").write_text(":job_id:01\n:worker:critic-0\nfirst\nsecond\n")
    (source / "worker-2.out").write_text(":worker:critic-0\nof its successor\n")
    (source / "worker-3.err").write_text(":worker:critic-1\n")
    (source / "raylet.out").write_text("Ray's own\n")
    keep_logs(source, kept)
    assert {path.name for path in kept.iterdir()} == {"critic-0.out"}
    assert (kept / "critic-0.out").read_text() == "first\nsecond\nof its successor\n"


def test_only_plain_files_are_read_and_no_link_is_followed(tmp_path: Path) -> None:
    source, kept, secret = tmp_path / "source", tmp_path / "kept", tmp_path / "secret"
    source.mkdir()
    secret.write_text("a secret\n")
    (source / "worker-link.out").symlink_to(secret)
    (source / "worker-gone.out").symlink_to(tmp_path / "nothing")
    (source / "worker-directory.out").mkdir()
    os.mkfifo(source / "worker-pipe.out")  # a reader would wait for ever
    (source / "worker-plain.out").write_text(":worker:critic-0\nwords\n")
    keep_logs(source, kept)
    assert {path.name: path.read_text() for path in kept.iterdir()} == {"critic-0.out": "words\n"}


def test_what_a_model_wrote_steers_no_terminal_and_progress_bars_are_lines(tmp_path: Path) -> None:
    source, kept = tmp_path / "source", tmp_path / "kept"
    source.mkdir()
    log = b":worker:critic-0\nanswer \x1b[2J\xe2\x80\xae\r\n 10%\r 20%\r100%\n\tdone"
    (source / "worker-1.out").write_bytes(log)
    keep_logs(source, kept)
    shown = (kept / "critic-0.out").read_bytes()
    assert shown == b"answer \\x1b[2J\\u202e\n 10%\n 20%\n100%\n\tdone\n"
