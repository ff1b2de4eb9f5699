"""All known errors. A new one is a row in the file of its subject, and a line in the test."""

from roll.doctor import communication, engines, gpu_memory, host, software

KNOWN_ERRORS = (*gpu_memory.ROWS, *engines.ROWS, *communication.ROWS, *host.ROWS, *software.ROWS)
"""The first row that fits a line is the one that is told."""
