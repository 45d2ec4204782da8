"""Command-line options from configuration sections, and back: one place for both directions."""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ffn.config import ImageConfig, Mask, Section
from ffn.errors import ConfigError, explain
from ffn.geometry import Box

M = TypeVar("M", bound=BaseModel)

NULL = "none"


class Parser(argparse.ArgumentParser):
    """Parser with one-line errors and a short usage line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # also -2e-05, which flags writes

    def show_first(self, names: set[str]) -> None:
        """Let ``--help`` show required arguments and these options alone, and ``--help-all`` all."""
        hidden = {each: each.help for each in self._actions if not each.required and each.dest not in {*names, "help"}}
        for action in hidden:
            action.help = argparse.SUPPRESS
        self.add_argument(
            "--help-all", action=_HelpAll, nargs=0, const=hidden, help=f"show {len(hidden)} more options and exit"
        )

    def format_help(self) -> str:
        """Show only required arguments in the usage line; the options are listed below it."""
        needed = [word for action in self._actions if action.required for word in _words(action)]
        self.usage = self.usage or " ".join([self.prog, *needed, "[OPTION …]"])
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print the error and how to get help; exit with 2."""
        known, _, words = message.partition("unrecognized arguments: ")
        if not known and " " in words and os.path.isfile(file := words.partition(" ")[0]):  # a glob without quotes?
            message = f"unrecognized arguments: {file} and {words.count(' ')} more. A glob needs quotes: 'stack/*.png'"
        print(f"{self.prog}: error: {message}. See '{self.prog} --help'", file=sys.stderr)
        raise SystemExit(2)


class _HelpAll(argparse.Action):
    """The help with all options."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        for action, text in self.const.items():
            action.help = text
        parser.print_help()
        parser.exit()


def _words(action: argparse.Action) -> list[str]:
    """Name and values of an argument as a user types them."""
    values = action.metavar if isinstance(action.metavar, tuple) else (action.metavar or action.dest.upper(),)
    more = ["…"] if action.nargs in ("+", argparse.PARSER) else []
    return [*action.option_strings[-1:], *values, *more]


def option_name(field: str) -> str:
    """Return the option of a field: units that every volume shares are not repeated on the command line.

    Examples
    --------
    >>> option_name("lom_radius_zyx"), option_name("voxel_size_zyx_nm"), option_name("min_label_um3")
    ('--lom-radius', '--voxel-size', '--min-label-um3')
    """
    return "--" + field.removesuffix("_nm").removesuffix("_zyx").replace("_", "-")


def add_options(parser: argparse.ArgumentParser, model: type[Section], skip: tuple[str, ...] = ()) -> None:
    """Give `parser` one option for each field of `model`, under the headings of the section."""
    title = f"{model.__name__.removesuffix('Config').lower()} options"
    group = parser.add_argument_group(title)
    for name, info in model.model_fields.items():
        if name in model.headings:
            group = parser.add_argument_group(f"{title} ({model.headings[name]})")
        if name not in {*skip, *model.for_workflow}:
            _add_option(group, name, info)


def add_box_option(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the option ``--box``, a `Box` in full-volume voxels, None where it is not given."""
    text = "part of the volume, voxels (default: all)"
    parser.add_argument("--box", type=box_value, metavar="Z0:Z1,Y0:Y1,X0:X1", help=text)


def box_value(text: str) -> Box:
    """Read a box, such as ``0:64,0:64,-5:18``."""
    try:
        return Box.parse(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_volume_option(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Give `parser` the option `name` with a required volume, described by `text`."""
    parser.add_argument(name, required=True, metavar="VOLUME", help=f"{text}, NAME.zarr or FILE.h5:DATASET")


def add_store_option(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Give `parser` the option `name` with the store, described by `text`, that a stage writes."""
    parser.add_argument(name, required=True, metavar="NAME.zarr", help=f"{text} to write")


def add_machine_option(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the option ``--machine``, None where it is not given."""
    text = "folder in which the first job records its choices for 'auto', which all others take (default: chosen anew)"
    parser.add_argument("--machine", metavar="FOLDER", help=text)


def add_masks_option(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the option ``--masks`` of `ImageConfig`."""
    add_options(parser, ImageConfig, skip=("normalize", "init_segmentation"))


def masks_from(arguments: argparse.Namespace) -> tuple[Mask, ...]:
    """Return the masks of parsed options."""
    return from_arguments(ImageConfig, arguments).masks


def add_normalization_option(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the option ``--normalization``, None where it is not given."""
    text = "of the image, from 'ffn normalize' (default: mean and deviation of the model)"
    parser.add_argument("--normalization", metavar="FILE.json", help=text)


def whole_number(text: str) -> int:
    """Read the value of an option that counts things, such as ``--threads``."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def positive_number(kind: type[int] | type[float], or_zero: bool = False) -> Callable[[str], float]:
    """Return the reader of an option with a number above 0, such as ``--timeout``."""

    def read(text: str) -> float:
        number = kind(text)
        if not 0 < number < math.inf and not (or_zero and number == 0):
            raise argparse.ArgumentTypeError(f"{text!r} is not above 0" + (", nor 0" if or_zero else ""))
        return number

    read.__name__ = kind.__name__  # argparse names it where text is no number
    return read


def parse_named(option: str, words: Sequence[str], convert: Callable[[str], Any] = str) -> dict[str, Any]:
    """Return the values of ``NAME=VALUE`` words by name."""
    values: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not (name and value):
            raise ConfigError(f"{option}: found {word!r}, expected NAME=VALUE")
        if name in values:
            raise ConfigError(f"{option}: found {name!r} twice, expected different names")
        try:
            values[name] = convert(value)
        except ValueError:
            raise ConfigError(f"{option}: found {value!r} for {name!r}, expected a number") from None
    return values


def from_arguments(model: type[M], arguments: argparse.Namespace, **extra: object) -> M:
    """Build the section `model` from parsed options; options that were not given keep their defaults."""
    given = {name: getattr(arguments, name, None) for name in model.model_fields}
    values = {name: None if value == NULL else value for name, value in given.items() if value is not None}
    try:
        return model(**{**values, **extra})
    except ValidationError as error:
        raise ConfigError(explain(error, lambda path: option_name(path[0]) if path else "options")) from None


def flags(
    section: Section, skip: tuple[str, ...] = (), *, result: bool = True, defaults: Mapping[str, object] | None = None
) -> str:
    """Return the options that make `section` from the defaults, for a shell line of the workflow.

    Examples
    --------
    >>> from ffn.config import SegmentConfig
    >>> section = SegmentConfig(max_fovs=50, checkpoint_seconds=9)
    >>> flags(section), flags(section, result=False)
    ('--max-fovs 50', '--checkpoint-seconds 9.0')
    """
    names = [name for name in type(section).model_fields if (name in section.same_result()) != result]
    names = [name for name in names if name not in {*skip, *section.for_workflow}]
    return " ".join(_flag_words(section, names, defaults or {}))


def _flag_words(section: Section, names: list[str], defaults: Mapping[str, object]) -> Iterator[str]:
    defaults = {**section.defaults(), **defaults}
    for name in names:
        value = getattr(section, name)
        if value == defaults[name]:
            continue
        if isinstance(value, bool):
            yield option_name(name) if value else "--no-" + option_name(name)[2:]
        elif value is None:
            yield f"{option_name(name)} {NULL}"
        else:
            words = " ".join(map(_word, value if isinstance(value, tuple) else (value,)))
            separator = "=" if words.startswith("-") and " " not in words else " "  # else -name is an option
            yield f"{option_name(name)}{separator}{words}".rstrip()


def _word(value: object) -> str:
    """Text of one value that the shell leaves alone."""
    return repr(value) if isinstance(value, float) else shlex.quote(str(value))


def _add_option(group: argparse._ArgumentGroup, name: str, info: FieldInfo) -> None:
    default = info.get_default(call_default_factory=True)
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
    text = f"{info.description} (default: {NULL if shown is None else shown})".replace("%", "%%")
    text = re.sub(r"\bnull\b", NULL, text)  # the word of configuration files
    kind = _plain(info.annotation)
    if kind is bool:
        group.add_argument(option_name(name), dest=name, action=argparse.BooleanOptionalAction, default=None, help=text)
        return
    arguments: dict[str, Any] = {"dest": name, "default": None, "help": text}
    if get_origin(kind) is tuple:
        arguments["nargs"] = "*" if Ellipsis in get_args(kind) else len(get_args(kind))
        arguments["metavar"] = ("Z", "Y", "X") if arguments["nargs"] == 3 else "VALUE"
    else:
        arguments["metavar"] = "|".join(_forms(info.annotation))
    group.add_argument(option_name(name), **arguments)


def _plain(annotation: Any) -> Any:
    """Strip ``Annotated`` and ``| None`` from a type."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return _plain(next(kind for kind in get_args(annotation) if kind is not type(None)))
    return annotation


def _forms(annotation: Any) -> list[str]:
    """Return what a value may be, for a help text: words, or names of types."""
    if get_origin(annotation) is Annotated:
        return _forms(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [word for kind in get_args(annotation) if kind is not type(None) for word in _forms(kind)]
    if get_origin(annotation) is Literal:
        return list(map(str, get_args(annotation)))
    return [getattr(annotation, "__name__", "value").upper()]
