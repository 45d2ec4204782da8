import numpy as np
import pytest

from ffn.io.open import open_volume

from .readers import SHAPE, check, refuse, voxels


def save(path, array, **options):
    np.save(path, array, **options)
    return str(path)


@pytest.mark.parametrize("dtype", ["u1", "u2", ">u2", "i4", "u8", "f4"])
def test_an_array_is_a_zyx_volume_without_voxel_size(tmp_path, dtype):
    assert check(save(tmp_path / "a.npy", voxels(dtype)), voxels(np.dtype(dtype).newbyteorder("="))) is None


def test_archives_and_fortran_order_are_read(tmp_path):
    spec = save(tmp_path / "a.npy", np.asfortranarray(voxels()))
    check(spec)
    with open_volume(spec) as volume:
        assert volume.read().flags.c_contiguous
    np.savez_compressed(tmp_path / "a.npz", labels=voxels(), size=np.zeros(3))
    check(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", raw=voxels(), labels=voxels())
    refuse(tmp_path / "b.npz", "b.npz: ", "raw", "labels")


@pytest.mark.parametrize("dtype", ["c8", "U3", "M8[s]", [("a", "u1")]], ids=str)
def test_an_array_of_another_type_is_refused(tmp_path, dtype):
    refuse(save(tmp_path / "a.npy", np.zeros(SHAPE, dtype)), "a.npy: has type ")


@pytest.mark.parametrize("shape", [SHAPE[1:], (2, *SHAPE), (0, 2, 3)])
def test_an_array_of_another_shape_is_refused(tmp_path, shape):
    refuse(save(tmp_path / "a.npy", np.zeros(shape, "u1")), f"a.npy: has shape {shape}")


class Trap:
    """An object whose unpickling fails the test."""

    def __reduce__(self):
        return pytest.fail, ("was unpickled",)


def test_pickled_objects_are_refused_without_unpickling(tmp_path):
    refuse(save(tmp_path / "a.npy", np.full(SHAPE, Trap()), allow_pickle=True), "a.npy", "Python objects")


@pytest.mark.parametrize("num_bytes", [0, 5, 60, 200, -1])
def test_a_truncated_file_is_refused(tmp_path, num_bytes):
    path = tmp_path / "a.npy"
    save(path, voxels())
    path.write_bytes(path.read_bytes()[:num_bytes])
    refuse(path, "a.npy")
