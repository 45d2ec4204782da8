"""Volumes between stages: OME-Zarr 0.5 in shards, with the small tables that belong to a volume.

``NAME.zarr`` is a group with the array ``0`` (OME's path of full resolution). More volumes of the same box are images
below it, ``NAME.zarr/probability`` with ``NAME.zarr/probability/0``. Tables are arrays next to them. The
metadata of the groups are written last: without them, a store is not finished.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Set
from pathlib import Path

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.atomic import atomic_path
from ffn.io.faults import named
from ffn.io.ome_zarr import array_metadata, encode, group_metadata, image_metadata, ours_in
from ffn.io.shards import Shards, shard_shape
from ffn.io.store_folder import ShardWriter, StoreFolder
from ffn.io.store_names import MAIN, METADATA, OURS, store_to_write
from ffn.io.volume import Placement, Tables

log = logging.getLogger(__name__)

METADATA_OF_ZARR = (METADATA, ".zgroup", ".zarray", f"{MAIN}/{METADATA}", f"{MAIN}/.zarray")


class Store:
    """A store that is being written."""

    def __init__(
        self, folder: StoreFolder, name: str, dtypes: Mapping[str, np.dtype | type], placement: Placement
    ) -> None:
        self.folder = folder
        self.name = name
        self.dtypes = {volume: np.dtype(dtype).newbyteorder("=") for volume, dtype in dtypes.items()}
        self.placement = placement
        largest = max(dtype.itemsize for dtype in self.dtypes.values())
        self.shards = Shards(placement.box, placement.shard_zyx or shard_shape(placement.box.shape, largest))

    def make_arrays(self) -> None:
        """Write the metadata of the arrays if they are missing, and mark the store unfinished."""
        for group in (METADATA, *(f"{volume}/{METADATA}" for volume in self.dtypes if volume != MAIN)):
            self.folder.delete(group)
        for volume, dtype in self.dtypes.items():
            metadata = array_metadata(
                self.placement.box.shape, dtype, self.shards.shape_zyx, self.placement.level_of_ids
            )
            self.folder.write_metadata(array_of(volume), metadata)

    def writers(self, owned: Box | None = None) -> dict[str, ShardWriter]:
        """Return a writer for each volume; it may write to the shards of the box `owned`, by default to all."""
        return {volume: ShardWriter(self.folder, array_of(volume), self.shards, owned) for volume in self.dtypes}

    def checksums(self, box: Box) -> dict[str, str | None]:
        """Return the checksums of the files of the shards in `box`, None for those that are missing."""
        return {key: self.folder.checksum(key) for key in self._keys(box)}

    def has_shards(self, box: Box) -> bool:
        """Whether the files of the shards in `box` exist."""
        return all(map(self.folder.has, self._keys(box)))

    def finish(self, tables: Tables, checksums: Mapping[str, str | None]) -> None:
        """Write tables, but for those that are None, and metadata, once all shards are written."""
        made = {name: table() if callable(table) else table for name, table in tables.items()}
        arrays = {name: np.asarray(table) for name, table in made.items() if table is not None}
        self._keep(checksums.keys())
        for name in made.keys() - arrays.keys():
            self.folder.remove(name)
        for name, table in arrays.items():
            self.folder.write_table(name, table)
        place = (str(self.placement.box), self.placement.voxel_size_zyx_nm)
        digest = hashlib.sha256(repr([place, sorted(checksums.items())]).encode())
        for name in sorted(arrays):
            digest.update(f"{name} {arrays[name].shape} {arrays[name].dtype}".encode() + arrays[name].tobytes())
        ours = {
            "provenance": self.placement.provenance,
            "box": str(self.placement.box),
            "content": digest.hexdigest(),
            "volumes": sorted(self.dtypes),
            "tables": sorted(arrays),
        }
        for volume in sorted(self.dtypes.keys() - {MAIN}):
            image = image_metadata(volume, self.placement, self.dtypes[volume], ours)
            self.folder.write(f"{volume}/{METADATA}", encode(image))
        title = Path(self.name).stem
        main = self.dtypes.get(MAIN)
        root = image_metadata(title, self.placement, main, ours) if main is not None else group_metadata({OURS: ours})
        self.folder.write(METADATA, encode(root))

    def _keys(self, box: Box) -> list[str]:
        shards = list(self.shards.touched_by(box))
        return [f"{array_of(volume)}/{self.shards.key(shard)}" for volume in self.dtypes for shard in shards]

    def _keep(self, shards: Set[str]) -> None:
        """Remove the files of all other shards, and what killed writers left."""
        for volume in self.dtypes:
            for key in set(self.folder.list(f"{array_of(volume)}/c/")) - shards:
                self.folder.delete(key)
            if self.folder.path:
                array = self.folder.path / array_of(volume)
                for left in (*array.rglob("*.__lock"), *array.glob(f".{METADATA}.tmp*")):
                    left.unlink(missing_ok=True)


def array_of(volume: str) -> str:
    """Return the path of a volume's array in the store.

    Examples
    --------
    >>> array_of("0"), array_of("edges")
    ('0', 'edges/0')
    """
    return volume if volume == MAIN else f"{volume}/{MAIN}"


@contextlib.contextmanager
def create_volumes(
    path: str | Path,
    dtypes: Mapping[str, np.dtype | type],
    placement: Placement,
    tables: Tables | None = None,
    former: Collection[str] = (),
) -> Iterator[dict[str, ShardWriter]]:
    """Create a store, written by this process alone; it appears when the block ends without an error.

    Parameters
    ----------
    path : path
        Folder or URL ``NAME.zarr``.
    dtypes, placement
        See `Store`.
    tables : dict of str to ndarray or callable, optional
        Small arrays, such as lists of origins; a callable makes one at the end.
    former : collection of str
        Tables that only a former result may have; they go with it.

    Yields
    ------
    dict of str to ShardWriter
        One writer for each volume; voxels that are not written are 0.

    Raises
    ------
    VolumeError
        If something else is there, or nothing can be written.
    """
    tables = tables or {}
    require_replaceable(path, {*dtypes, *tables, *former})
    with new_folder(str(path)) as folder:
        store = Store(folder, str(path), dtypes, placement)
        store.make_arrays()
        writers = store.writers()
        yield writers
        for writer in writers.values():
            writer.finish()
        store.finish(tables, store.checksums(placement.box))


@contextlib.contextmanager
def create_volume(path: str, dtype: np.dtype | type, placement: Placement) -> Iterator[ShardWriter]:
    """Create a store of a single volume; see `create_volumes`."""
    with create_volumes(path, {MAIN: dtype}, placement) as writers:
        yield writers[MAIN]


def require_replaceable(path: str | Path, names: set[str]) -> None:
    """Check that replacing the folder by a store with the volumes and tables `names` loses nothing else."""
    store = StoreFolder(store_to_write(str(path)))
    folder = store.path
    if folder and not folder.exists():
        return
    if folder and not folder.is_dir():
        raise VolumeError(f"{path}: is a file, expected a folder to write. Choose another name")
    if _is_foreign(store):
        raise VolumeError(f"{path}: was written by another program, expected a store of this one. Choose another name")
    if folder is None:  # a list of a million shards takes long
        return
    known = {METADATA, *(name.strip("/") for name in names)}
    others = sorted(entry.name for entry in folder.iterdir() if entry.name not in known and entry.name[0] != ".")
    if others:
        raise VolumeError(f"{path}: holds {others}, expected nothing but {sorted(names)}. Choose another folder")


def _is_foreign(folder: StoreFolder) -> bool:
    """Whether a folder holds groups or arrays, and none of them is ours."""
    found = [metadata for name in METADATA_OF_ZARR if (metadata := folder.json(name))]
    return bool(found) and all(ours_in(metadata) is None for metadata in found)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep others from writing the same store: of two jobs at one subvolume, one removed files of the other's store."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(f".{path.name}.lock")
    with open(file, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock.fileno()).st_nlink == 0:  # its former holder has just removed it
                raise BlockingIOError
        except BlockingIOError:
            raise VolumeError(f"{path}: another process is writing it. Wait for it, or stop it and rerun") from None
        except OSError:
            log.info("%s: the file system has no locks", file)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[StoreFolder]:
    """Yield a folder that becomes `path` at the end; in an object store, `path` itself."""
    final = StoreFolder(path)
    if final.path is None:
        yield final
        return
    place = final.path.resolve()  # behind a link, if the folder lies on another disk
    with named(path), _alone(place), atomic_path(place) as temporary:
        temporary.mkdir()
        yield StoreFolder(str(temporary))
