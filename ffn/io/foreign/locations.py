"""Folders on disks, web servers and object stores, as TensorStore opens them."""

from __future__ import annotations

import json
import logging
import os
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import tensorstore as ts

from ffn.errors import VolumeError
from ffn.io.atomic import first_line, unreadable
from ffn.io.store_names import CHUNKED_FILES, absolute

log = logging.getLogger(__name__)

DRIVERS = {
    "zarr": "auto",  # version 2 or 3
    "zarr2": "zarr",
    "zarr3": "zarr3",
    "n5": "n5",
    "precomputed": "neuroglancer_precomputed",
    "neuroglancer-precomputed": "neuroglancer_precomputed",
}
# Files of which a folder holds at least one, if there is something to open.
METADATA = (*CHUNKED_FILES, ".zattrs")
# With TensorStore's default of 32, a wrong address takes many minutes to fail.
RETRIES = {"max_retries": 4}
SILENCE_S = 30  # without a byte, then a request is tried again; our choice
PATIENCE_S = 10  # before a line says that a server has not answered
CACHE_BYTES = 128 * 2**20  # of all volumes of a process, so that blocks that share a chunk fetch it once
CONTEXT = dict.fromkeys(("http_request_retries", "s3_request_retries", "gcs_request_retries"), RETRIES)
DENIED = ("PERMISSION_DENIED", "UNAUTHENTICATED")
CREDENTIALS = {  # of buckets, by the scheme of the address
    "s3": "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; where it is not Amazon's also "
    "AWS_ENDPOINT_URL and AWS_REGION",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS, or run: gcloud auth application-default login",
}


@dataclass(frozen=True)
class Location:
    """Where a volume is, and in which format."""

    spec: str  # as the user gave it, for messages
    address: str  # path or URL
    driver: str  # of TensorStore; ``auto`` finds it by the metadata

    @classmethod
    def parse(cls, spec: str) -> Location:
        """Split a spec; Neuroglancer's are understood: ``precomputed://gs://…`` or ``gs://…|neuroglancer-precomputed:``.

        Examples
        --------
        >>> Location.parse("n5://s3://bucket/raw").address, Location.parse("s3://bucket/raw|n5:").driver
        ('s3://bucket/raw', 'n5')
        """
        prefix, separator, rest = spec.partition("://")
        if separator and prefix in DRIVERS:
            return cls(spec, rest, DRIVERS[prefix])
        address, _, format_ = spec.partition("|")
        if "://" in spec and format_.strip(":/") in DRIVERS:
            return cls(spec, address, DRIVERS[format_.strip(":/")])
        return cls(spec, spec, "auto")

    @property
    def path(self) -> Path | None:
        """The folder, None if it is not on this machine."""
        address = self.address.removeprefix("file://")
        return None if "://" in address else absolute(address)

    @property
    def absolute(self) -> str:
        """The spec that is valid from any folder.

        Examples
        --------
        >>> [Location.parse(spec).absolute for spec in ("n5:///data/raw", "file:///data/raw|n5:", "s3://bucket/raw")]
        ['n5:///data/raw', 'n5:///data/raw', 's3://bucket/raw']
        """
        if self.path is None:
            return self.spec
        prefix = next(name for name, driver in DRIVERS.items() if driver == self.driver)
        return str(self.path) if self.driver == "auto" else f"{prefix}://{self.path}"


class Folder:
    """A folder that can be read, with all in it."""

    _tells_what_is_missing = True  # a bucket that may not be listed refuses missing files, too

    def __init__(self, spec: dict[str, Any], context: ts.Context) -> None:
        self.spec = spec  # as TensorStore takes it, with the credentials, which a `KvStore` does not give back
        self.context = context
        self.files = ts.KvStore.open(spec, context=context).result()

    def json(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file; empty if there is none.

        Raises
        ------
        VolumeError
            If it is there, but cannot be read: without its metadata, a volume would lie at another place.
        """
        with unreadable(self._address(name), "a JSON object. Restore it or try again"):
            try:
                file = self.answer(self.files.read(name))
            except ValueError as error:
                if str(error).startswith(DENIED) and not self._tells_what_is_missing:
                    return {}
                raise
            content = {} if file.state == "missing" else json.loads(file.value)
            if not isinstance(content, dict):
                raise ValueError(f"it holds {reprlib.repr(content)}")
            return content

    def answer(self, request: ts.Future) -> Any:
        """Return the result of a request, and say once in the log that a server takes long."""
        try:
            return request.result(timeout=None if self.spec["driver"] == "file" else PATIENCE_S)
        except TimeoutError:
            _warn_of_silence(self.address)
            return request.result()

    def refusal(self) -> str | None:
        """Return why reading is not permitted; None if something can be opened, or nothing is there."""
        states, failures = set(), list[ValueError]()
        for request in [self.files.read(name) for name in METADATA]:
            try:
                states.add(self.answer(request).state)
            except ValueError as error:
                failures.append(error)
        self._tells_what_is_missing = "missing" in states  # a folder never holds all of them
        if "value" in states or not failures:
            return None
        worst = min(failures, key=lambda error: str(error).startswith(DENIED))
        if not str(worst).startswith(DENIED):
            raise worst
        return first_line(worst)

    @property
    def address(self) -> str:
        """Path or URL, for messages."""
        return self._address("").rstrip("/")

    def below(self, path: str) -> Folder:
        """Return the folder at `path` in this one; refuse a place outside, which metadata may name."""
        if ".." in path.split("/") or "://" in path:
            raise VolumeError(f"{self.address}: its metadata name {path!r:.200}, expected a place inside. Correct them")
        return self._at(f"{self.spec['path']}{path.strip('/')}/")

    def above(self) -> tuple[Folder, str] | None:
        """Return the folder around this one, and the name of this one in it; None for the root of a bucket."""
        path = self.spec["path"].rstrip("/")
        parent, slash, name = path.rpartition("/")
        return (self._at(parent + slash), name) if path else None

    def _address(self, name: str) -> str:
        """Return the path or URL of a file, for messages; TensorStore has none for every store."""
        store = self.spec.get("base_url") or self.spec.get("bucket", "")
        return f"{store.rstrip('/')}/{self.spec['path'].lstrip('/')}{name}"

    def _at(self, path: str) -> Folder:
        folder = Folder({**self.spec, "path": path}, self.context)
        folder._tells_what_is_missing = self._tells_what_is_missing
        return folder


@cache
def _warn_of_silence(address: str) -> None:
    log.warning(
        "%s: no answer after %g s. Waiting; a server that sends nothing is given up after some %.0f minutes",
        *(address, PATIENCE_S, (1 + RETRIES["max_retries"]) * SILENCE_S / 60),
    )


@cache
def shared_context() -> ts.Context:
    """Return the part that all contexts of a process share: the cache, and credentials once they were looked up."""
    return ts.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}})


def open_folder(spec: str) -> Folder:
    """Open the folder: in an object store without credentials first, then with those of this machine.

    The environment names the store, where it is not the public one: AWS_ENDPOINT_URL (or AWS_ENDPOINT_URL_S3) with
    AWS_REGION, or TENSORSTORE_GCS_HTTP_URL.

    Raises
    ------
    VolumeError
        If it cannot be reached, or reading is not permitted; the message says which variables to set.
    """
    location = Location.parse(spec)
    refusal, context = None, ts.Context(CONTEXT, parent=shared_context())
    with unreadable(spec, "a folder or URL. Check address and network"):
        for store in _stores(location):
            folder = Folder(store, context)
            refusal = folder.refusal()
            if refusal is None:
                return folder
    advice = CREDENTIALS.get(urlsplit(location.address).scheme, "Ask its owner, or download the volume")
    raise VolumeError(f"{spec}: may not be read ({refusal}), expected the right to read it. {advice}")


def _stores(location: Location) -> Iterator[dict[str, Any]]:
    """Yield the ways to open a folder, in the order to try them."""
    if location.path:
        yield {"driver": "file", "path": f"{location.path}/"}
        return
    limits = {"LOW_SPEED_TIME_SECONDS": SILENCE_S, "LOW_SPEED_LIMIT_BYTES": 1, "CONNECT_TIMEOUT_SECONDS": SILENCE_S}
    for name, value in limits.items():  # TensorStore takes them from there alone, at its first request
        os.environ.setdefault(f"TENSORSTORE_CURL_{name}", str(value))
    url = urlsplit(location.address)
    path = f"{url.path.strip('/')}/".lstrip("/")  # empty for the root of a bucket
    if url.scheme == "s3":
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        # The region of a public bucket is looked up, because that of the environment may be another one.
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        own = {"endpoint": endpoint, "aws_region": region} if endpoint else {}
        for credentials in ("anonymous", "default"):
            yield {"driver": "s3", "bucket": url.netloc, "path": path, "aws_credentials": {"type": credentials}, **own}
    elif url.scheme == "gs":
        host = os.environ.get("TENSORSTORE_GCS_HTTP_URL", "https://storage.googleapis.com")
        yield {"driver": "http", "base_url": f"{host}/{url.netloc}/", "path": path}
        yield {"driver": "gcs", "bucket": url.netloc, "path": path}
    else:
        address = url._replace(path=url.path.rstrip("/") + "/").geturl()  # before a query, such as a signature
        yield ts.KvStore.Spec(address).to_json()
