"""Lists of files, one per line, for jobs that read as many files as there are subvolumes.

A command line has room for some ten thousand names, so the shell lines give ``@LIST`` instead.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ffn.io import atomic
from ffn.io.store_names import without_metadata
from ffn.workflow.pipeline import Pipeline


class FileList(NamedTuple):
    """Lines for a command and where they lie; the name has their digest, so that a shell line never changes meaning."""

    path: str
    lines: list[str]

    @classmethod
    def of(cls, pipeline: Pipeline, stage: str, dataset: str = "", **wildcards: str) -> FileList:
        """Return the list of the files that a stage makes."""
        ending = f"/{dataset}" if dataset else ""
        lines = [f"{without_metadata(file)}{ending}" for file in pipeline.files(stage, **wildcards)]
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
        name = "-".join(filter(None, [stage, dataset, *(value.strip("-") for value in wildcards.values()), digest]))
        return cls(pipeline.paths.file_list(name), lines)

    def write(self) -> None:
        """Write the list, unless it is there."""
        text = "".join(f"{line}\n" for line in self.lines)
        if not Path(self.path).is_file() or Path(self.path).read_text() != text:
            atomic.write_text(self.path, text)


@functools.cache
def list_path(pipeline: Pipeline, stage: str, dataset: str = "", **wildcards: str) -> str:
    """Return the path of `FileList.of`, whose lines are read only once: there may be a million."""
    return FileList.of(pipeline, stage, dataset, **wildcards).path


def write_file_lists(pipeline: Pipeline) -> None:
    """Write all lists that jobs of a run read, and remove those of earlier configurations."""
    written = set()
    for listed in file_lists(pipeline):
        listed.write()
        written.add(Path(listed.path))
    for old in set(Path(pipeline.paths.file_list("*")).parent.glob("*.txt")) - written:
        old.unlink(missing_ok=True)


def file_lists(pipeline: Pipeline) -> Iterator[FileList]:
    """Yield all lists that jobs of a run read."""
    for volume in pipeline.segmented:
        for order in pipeline.orders:
            yield FileList.of(pipeline, "segment", volume=volume, order=order)
        yield FileList.of(pipeline, "segment", "probability", volume=volume, order="")
    for volume in pipeline.agglomerated:
        yield FileList.of(pipeline, "agglomerate", volume=volume)
