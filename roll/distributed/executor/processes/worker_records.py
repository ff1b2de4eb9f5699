"""Log records of the workers, on their way to the driver's log, through the key-value store of Ray's control process:
both sides reach it at any time, and it outlives a worker."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from ray.exceptions import RayError
from ray.experimental import internal_kv

from roll.distributed.executor.processes.resource_manager import RUN_ID

if TYPE_CHECKING:
    from roll.distributed.executor.processes.launch import RayRuntime

logger = logging.getLogger(__name__)

_NAMESPACE = b"roll_worker_records"
_POLL_S = 1.0
_MOST = 20  # records that a process sends from one line of code
_NUMBER = re.compile(r"\d+")


class RecordSender(logging.Handler):
    """Sends roll's records of a worker to the driver; of those that differ in numbers alone the first."""

    def __init__(self, run_id: str, worker: str):
        super().__init__(logging.INFO)
        self.addFilter(logging.Filter("roll"))
        self._run_id, self._worker = run_id, worker
        self._sent: defaultdict[tuple[str, int], set[str]] = defaultdict(set)

    def emit(self, record: logging.LogRecord) -> None:
        text = "\n".join(filter(None, (record.getMessage(), record.exc_text)))
        sent, kind = self._sent[record.pathname, record.lineno], _NUMBER.sub("0", text)
        if kind in sent or len(sent) == _MOST:
            return
        sent.add(kind)
        value = json.dumps([record.name, record.levelno, self._worker, text])
        try:
            internal_kv._internal_kv_put(f"{self._run_id}/{time.time_ns()}-{self._worker}", value, namespace=_NAMESPACE)
        except Exception:  # Ray is gone, which others tell
            self.handleError(record)


class RecordReader:
    """A thread of the driver that writes the workers' records into its log, as RecordSender chooses them."""

    def __init__(self, runtime: RayRuntime):
        self._runtime = runtime
        self._written: set[tuple[int, str]] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="worker records", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._closed.is_set() or self._runtime.is_lost:
            return
        self._closed.set()
        self._thread.join()
        self._read()

    def _serve(self) -> None:
        while not self._closed.wait(_POLL_S) and not self._runtime.is_lost:
            self._read()

    def _read(self) -> None:
        try:
            for key in sorted(internal_kv._internal_kv_list(f"{RUN_ID}/", namespace=_NAMESPACE)):
                value = internal_kv._internal_kv_get(key, namespace=_NAMESPACE)
                internal_kv._internal_kv_del(key, namespace=_NAMESPACE)
                self._write(*json.loads(value))
        except RayError as error:
            logger.debug("records of the workers cannot be read: %s", error)

    def _write(self, name: str, level: int, worker: str, text: str) -> None:
        key = level, _NUMBER.sub("0", text)
        if key not in self._written:
            self._written.add(key)
            logging.getLogger(name).log(level, "[%s] %s", worker, text)
