"""Errors a user can act on; the command line prints them in one line and exits with 2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class FfnError(Exception):
    """Base of every error that a user's input can cause.

    The message follows ``<where>: <what was found>, <what is needed>. <next step>``.
    """


class ConfigError(FfnError, ValueError):
    """A configuration key or a command-line option has an unusable value; pydantic takes it as a ValueError."""


class InputError(ConfigError):
    """The value of an option or a key is unusable: ``<key>: <reason>``."""

    def __init__(self, key: str, reason: object) -> None:
        super().__init__(f"{key}: {reason}")
        self.key, self.reason = key, reason


@contextlib.contextmanager
def under(key: str) -> Iterator[None]:
    """Let errors of a ``with`` block begin with `key`.

    A key that they begin with already follows it (``volumes.cube`` and ``masks``), or stays if it has a section.
    """
    try:
        yield
    except InputError as error:
        raise InputError(error.key if "." in error.key else f"{key}.{error.key}", error.reason) from None
    except FfnError as error:
        raise InputError(key, error) from None


class VolumeError(FfnError):
    """A volume cannot be opened, read or written as asked."""


class RecordError(FfnError):
    """Coordinates or training records are missing, damaged or inconsistent."""


class ModelError(FfnError):
    """A model folder or checkpoint is missing, damaged or does not fit."""


class TrainError(FfnError):
    """Training cannot start or continue as configured."""


class DivergenceError(TrainError):
    """The gradient is not finite any more, step after step."""


class SegmentError(FfnError):
    """Flood filling cannot continue."""


class ExportError(FfnError):
    """An export cannot be written, found, checked or shown."""


class EvaluationError(FfnError):
    """Scores or a report cannot be computed, read or written."""


class ClusterError(FfnError):
    """A job cannot be started on this machine as asked, or this site does not work."""
