"""Errors a user can act on; the command line prints them in one line and exits with 2."""


class FfnError(Exception):
    """Base of every error that a user's input can cause.

    The message follows ``<where>: <what was found>, <what is needed>. <next step>``.
    """


class ConfigError(FfnError, ValueError):
    """A configuration key or a command-line option has an unusable value; pydantic takes it as a ValueError."""


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
