"""The log file: what the tool did, for whoever has to find out why it did it.

This module runs on Python 3.7.
"""

import logging
from pathlib import Path
from typing import Callable, Optional

LOG_NAME = "precision_tool.log"
LEVELS = ("debug", "info", "warning", "error", "off")

_LOGGER = "precision_tool"
_MAX_BYTES = 1 << 20


class _LateFile(logging.Handler):
    """Opens its file with the first record: nothing is made in a data folder before there is something to say."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        super().__init__()
        self._folder = folder
        self._file: Optional[logging.Handler] = None
        #: The file, once there is one.
        self.path: Optional[Path] = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; a log that cannot be written is no reason to fail."""
        from logging.handlers import RotatingFileHandler

        if self._file is None:
            try:
                path = self._folder() / LOG_NAME
                self._file = RotatingFileHandler(str(path), maxBytes=_MAX_BYTES, backupCount=1, encoding="utf-8")
                self.path = path
            except OSError:
                self._file = logging.NullHandler()
            self._file.setFormatter(self.formatter)
        self._file.emit(record)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        super().close()


def start_log(level: str, folder: Callable[[], Path]) -> logging.Logger:
    """The tool's logger, writing records of `level` and above into the folder that `folder()` makes."""
    logger = logging.getLogger(_LOGGER)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = False
    if level == "off":
        logger.addHandler(logging.NullHandler())
        return logger
    logger.setLevel(level.upper())
    handler = _LateFile(folder)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logger.addHandler(handler)
    return logger
