import numpy as np
import pytest

from ffn.errors import VolumeError
from ffn.io.foreign.attributes import mip_of_array, to_nm


@pytest.mark.parametrize(
    ("sizes", "units", "expected"),
    [
        ((40, 4, 4.5), ("", "nm", "nanometer"), (40, 4, 4.5)),
        ((0.04, 0.004, 0.004), ("um", "µm", "micrometer"), (40, 4, 4)),
        ((4e-5, 4e-6, 4e-9), ("mm", "millimeter", "m"), (40, 4, 4)),
        ((40, 4, 4), ("Nanometers", "nanometres", " nm"), (40, 4, 4)),
        ((400, 40, 40), ("Å", "\u212b", "angstroms"), (40, 4, 4)),
        ((40, 4, 4), ("nm", "nm", "pixel"), None),
        ((40, 0, 4), ("nm", "nm", "nm"), None),
    ],
)
def test_lengths_become_nm_unless_they_are_unusable(sizes, units, expected):
    found = to_nm(sizes, units)
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, (None, (0, 0, 0))),
        ({"offset": (0, 0, 0)}, (None, (0, 0, 0))),
        ({"element_size_um": np.float32([0.04, 0.0045, 0.004])}, ((40, 4.5, 4), (0, 0, 0))),
        ({"voxel_size": (0.04, 0.004, 0.004), "offset": (0.4, 0, 0), "units": ["um"] * 3}, ((40, 4, 4), (10, 0, 0))),
        ({"resolution": (0.04, 0.004, 0.004), "offset": (0.4, 0, 0), "units": "um"}, ((40, 4, 4), (10, 0, 0))),
        ({"resolution": (40, 4, 4), "element_size_um": (0.04, 0.004, 0.004)}, ((40, 4, 4), (0, 0, 0))),
        ({"resolution": (40, 4, 4)}, ((40, 4, 4), (0, 0, 0))),
        ({"voxel_size": (40, 0.004, 0.004), "units": ["nm", "um", "um"]}, ((40, 4, 4), (0, 0, 0))),
        ({"voxel_size": (40, 4, 4), "offset": (400, 0, -8)}, ((40, 4, 4), (10, 0, -2))),
        ({"resolution": (0.1, 0.1, 0.1), "offset": (0.3, 0.7, 0)}, ((0.1, 0.1, 0.1), (3, 7, 0))),
        ({"axis_names": ["x", "y", "z"], "voxel_size": (4, 5, 40), "offset": (8, 15, 80)}, ((40, 5, 4), (2, 3, 2))),
        ({"axis_names": ["c^", "y", "x", "z"], "voxel_size": (5, 4, 40)}, ((40, 5, 4), (0, 0, 0))),
        ({"axes": "zyx", "voxel_size_nm": (40, 5, 4), "offset": (2, 3, -1), "units": 3}, ((40, 5, 4), (2, 3, -1))),
        ({"axes": "xyz", "element_size_um": (0.04, 0.005, 0.004)}, ((40, 5, 4), (0, 0, 0))),
    ],
)
def test_offsets_in_nm_become_voxels(attributes, expected):
    place = mip_of_array(attributes, "a.h5:raw")
    assert (place.voxel_size_zyx_nm, place.start_zyx("a.h5:raw")) == expected


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({"resolution": (4, 4, 4), "offset": (0, 6, 0)}, r"\(0, 1.5, 0\) voxels"),
        ({"offset": (4, 4, 4)}, "offset is .* nm or voxels"),
        ({"element_size_um": (1, 1, 1), "offset": (4, 4, 4)}, "offset is .* nm or voxels"),
        ({"voxel_size": (4, 4, 4), "units": 3}, "voxel_size is .* 3"),
        ({"voxel_size": (4, 4, float("nan"))}, "voxel_size"),
        ({"voxel_size": (4, 4, 4), "offset": (0, float("inf"), 0)}, "inf"),
        ({"voxel_size": (1, 1, 1), "units": ["voxel"] * 3}, "voxel_size is .* voxel"),
        ({"resolution": (4, 0, 4)}, "resolution"),
        ({"resolution": (4, 4)}, r"resolution is \(4, 4\)"),
        ({"resolution": (4, "a", 4)}, "resolution"),
    ],
)
def test_unusable_attributes_are_refused(attributes, named):
    with pytest.raises(VolumeError, match=f"a.h5:raw: .*{named}"):
        mip_of_array(attributes, "a.h5:raw").start_zyx("a.h5:raw")
