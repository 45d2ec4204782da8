"""Errors a user can act on; the command line prints them in one line and exits with 2."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T")
USER_INFO = re.compile(r"(?<=://)[^/@\s'\"]+@")
SIGNED = re.compile(  # what Amazon, Google, Azure and CloudFront add to the query of a signed URL
    r"([?&](?:x-(?:amz|goog)-[\w-]+|sig|signature|(?:access_?)?token|(?:api_?)?key|awsaccesskeyid|googleaccessid|"
    r"policy|key-pair-id|expires|s[etprv])=)[^&\s#|'\",)]+",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """Return a text without the user info and the signatures of URLs in it.

    Examples
    --------
    >>> without_secrets("https://me:secret@host/a.zarr?v=2&sig=ab%2Fc")
    'https://host/a.zarr?v=2&sig='
    """
    return SIGNED.sub(r"\1", USER_INFO.sub("", text))


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


class Complaints:
    """Errors of several checks, to be raised together: a line for each key that they begin with."""

    def __init__(self) -> None:
        self._lines: dict[str, str] = {}

    def add(self, lines: Iterable[str]) -> None:
        """Keep errors, each of one line."""
        for line in lines:
            self._lines.setdefault(line.partition(": ")[0], line)

    def of(self, check: Callable[..., T], *arguments: Any) -> T | None:
        """Return the answer of a check; keep its error, if it raises one, and return None."""
        try:
            return check(*arguments)
        except FfnError as error:
            self.add(str(error).splitlines())
            return None

    def settle(self) -> None:
        """Raise what was kept, if anything was."""
        if self._lines:
            raise ConfigError("\n".join(self._lines.values()))


class VolumeError(FfnError):
    """A volume cannot be opened, read or written as asked."""


class UnwritableError(VolumeError, OSError):
    """A disk is full, or takes no files for another reason that its owner can change."""


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


CHECK_SPELLING = "expected a documented option. Check its spelling and place, or delete it if an older version had it"


def explain(error: ValidationError, where: Callable[[tuple], str]) -> str:
    """Turn pydantic's first complaint into one line that names key, value and expectation."""
    return explain_all(error, where).partition("\n")[0]


def explain_all(
    error: ValidationError,
    where: Callable[[tuple], str],
    instead: Callable[[tuple, Any], str] = lambda path, value: CHECK_SPELLING,
) -> str:
    """Turn pydantic's complaints into one line for each option that names key, value and expectation.

    `instead` says what an unknown key, with its value, may stand for.
    """
    groups: dict[str, list[Any]] = {}
    for each in error.errors():
        path = tuple(map(str, each["loc"]))
        groups.setdefault(where(path[: 3 if path[:1] == ("volumes",) else 2]), []).append(each)
    return "\n".join(_explained(complaints, where, instead) for complaints in groups.values())


def _explained(complaints: list[Any], where: Callable[[tuple], str], instead: Callable[[tuple, Any], str]) -> str:
    """Turn the complaints about one option into a line; several are those of the types that it may have."""
    first, *others = complaints
    path = tuple(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if path and path[-1].startswith("literal["):  # one of several types; the complaints of the others follow
        path = path[:-1]
        others = [other for other in others if other["loc"][:-1] == first["loc"][:-1]]
        message = " or ".join([message, *(other["msg"].removeprefix("Input should ") for other in others)])
    if first["type"] == "extra_forbidden":
        return f"{where(path)}: unknown key, {instead(path, first['input'])}"
    if first["type"] == "missing" and path[-1].isdecimal():  # the place in a list
        path, message = path[:-1], "expected more values"
    elif first["type"] == "missing":
        return f"{where(path)}: is missing, it is required"
    if first["type"] == "value_error":
        return f"{where(path)}: {message}" if path else message
    if first["type"] in ("model_type", "dict_type"):
        message = "expected lines of 'name: value' below it"
    if first["type"] == "string_type":
        kind = type(first["input"]).__name__
        message = f"expected text, which YAML took for a value of type {kind}. Put it in quotes"
    if first["type"] == "string_pattern_mismatch":
        message = "expected letters, digits, '_' and '-' alone, in the name of a run also '.'"
    if first["type"] == "tuple_type":
        message = "expected a list in [ ]"
    return f"{where(path)}: found {first['input']!r:.200}, {message[0].lower()}{message[1:]}"
