"""How volumes in stores are named: ``NAME.zarr`` is a folder or URL that ends so. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ffn.errors import VolumeError

STORE = re.compile(r"(.*[^/]\.zarr)(?:/+(.*?))?/*")  # path of a store, and the volume in it
MAIN = "0"  # the volume of a store that has one; its array at full resolution
METADATA = "zarr.json"  # of a group or an array in a store
LAST = "write"  # step of a stage that writes its output
JOBS = "jobs"  # end of the name of the folder with the logs of the jobs that write an output
TABLES = "tables.json"  # of a step, written last
IMAGE_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF"}
CHUNKED_FILES = ("info", ".zarray", ".zgroup", "zarr.json", "attributes.json")  # of zarr, N5 and precomputed
OURS = "ffn"  # key of our attributes in the metadata of groups and arrays


def split_store(spec: str) -> tuple[str, str] | None:
    """Split ``NAME.zarr``, ``NAME.zarr/0`` or ``NAME.zarr/VOLUME`` into the store and the volume; None for others.

    Examples
    --------
    >>> split_store("a/raw.zarr"), split_store("s3://b/raw.zarr/0"), split_store("membrane.zarr/edges/0/")
    (('a/raw.zarr', '0'), ('s3://b/raw.zarr', '0'), ('membrane.zarr', 'edges'))
    """
    match = STORE.fullmatch(spec)
    return match and (match[1], (match[2] or MAIN).removesuffix(f"/{MAIN}"))


def image_format(path: Path) -> str:
    """Return ``PNG``, ``JPEG`` or ``TIFF`` by the suffix of a slice, an empty text for other files."""
    return IMAGE_FORMATS.get(path.suffix.lower(), "")


def files_named(pattern: str) -> Sequence[Path]:
    """Return what a glob names, in no order; parts of it that exist as they are written are no patterns.

    Where nothing is found, brackets may belong to the names of the files.
    """
    folder, rest = Path(pattern), list[str]()
    while folder.name and not folder.exists():
        folder, rest = folder.parent, [folder.name, *rest]
    found = glob.glob(str(Path(glob.escape(str(folder)), *rest)), recursive=True)
    plain = [part.replace("[", "[[]") for part in rest]
    return [*map(Path, found or glob.glob(str(Path(glob.escape(str(folder)), *plain)), recursive=True))]


def files_in(folder: str, in_order: bool = False) -> Iterator[str]:
    """Yield the files in a folder and in those inside, also behind symbolic links; a link to what is gone is none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name) if in_order else entries:
            if entry.is_dir():
                yield from files_in(entry.path, in_order)
            elif entry.is_file():
                yield entry.path


def store_to_write(spec: str) -> Path:
    """Return the folder of a store that is to be written."""
    store = split_store(spec)
    if store is None or store[1] != MAIN or "://" in spec:
        raise VolumeError(f"{spec}: expected a folder NAME.zarr to write to. 'ffn convert' writes HDF5 files")
    return absolute(store[0])


def absolute(path: str) -> Path:
    """Return the path from the root; TensorStore refuses one with ".."."""
    found = Path(path).absolute()
    return found.resolve() if ".." in found.parts else found


def tracked_file(path: str) -> str:
    """Return the file that tells whether an output is finished, and when: the metadata of a store, else `path` itself.

    The command line takes it for the store, see `without_metadata`.

    Examples
    --------
    >>> tracked_file("run/raw.zarr"), tracked_file("run/scores.json")
    ('run/raw.zarr/zarr.json', 'run/scores.json')
    """
    return f"{path}/{METADATA}" if split_store(path) else path


def jobs_folder(path: str, step: str = "") -> Path:
    """Return the folder with the logs of jobs, next to the output.

    Examples
    --------
    >>> [str(jobs_folder(path)) for path in ("run/raw.zarr", "run/graphs/")]
    ['run/raw.zarr.jobs', 'run/graphs.jobs']
    >>> str(jobs_folder("run/raw.zarr", "match"))
    'run/raw.zarr.jobs/match'
    """
    return Path(f"{path.rstrip('/')}.{JOBS}", step)


def how_to_make(path: Path) -> str:
    """Say how a file comes back that is gone. Of jobs that make several, the workflow looks at the records alone."""
    jobs = jobs_folder(str(path.parent), LAST)
    if any(jobs.glob("*-of-*.json")):
        return f"Remove {jobs} and start the workflow again: it makes what is gone and keeps the rest"
    return "Did the earlier stage finish?"


def without_metadata(text: str) -> str:
    """Return an argument in which stores are named by their folders.

    Examples
    --------
    >>> without_metadata("demo=raw.zarr/zarr.json,labels.h5:labels"), without_metadata("m.zarr/zarr.json/edges")
    ('demo=raw.zarr,labels.h5:labels', 'm.zarr/edges')
    >>> without_metadata("tissue.zarr/zarr.json#values=3,4")  # a mask
    'tissue.zarr#values=3,4'
    """
    return re.sub(rf"(?<=\.zarr)/{re.escape(METADATA)}(?=$|[/,#])", "", text)
