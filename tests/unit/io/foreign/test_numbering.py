from pathlib import Path

import pytest

from ffn.errors import VolumeError
from ffn.io.foreign import image_format
from ffn.io.foreign.stacks import natural_key, require_series


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.png", "PNG"), ("a.JPG", "JPEG"), ("a.jpeg", "JPEG"), ("b.c.TIFF", "TIFF"), ("a.h5", ""), ("png", "")],
)
def test_the_suffix_tells_the_image_format(name, expected):
    assert image_format(Path(name)) == expected


def test_names_are_sorted_by_their_numbers():
    names = ["s10.png", "s2.png", "s1.png", "s02b.png", "S3.png"]
    assert [p.name for p in sorted(map(Path, names), key=natural_key)] == [
        "S3.png",
        "s1.png",
        "s2.png",
        "s02b.png",
        "s10.png",
    ]


@pytest.mark.parametrize(
    "names",
    [
        ["a.png"],
        ["a.png", "b.png"],
        ["7.png", "8.png"],
        ["z0000.tif", "z0040.tif", "z0080.tif"],
        ["run3_z9_ch1.png", "run3_z10_ch1.png"],
        ["day1_z09.png", "day2_z10.png"],
        ["sub1/z1.png", "sub1/z2.png"],
    ],
)
def test_a_series_without_a_gap_passes(names):
    require_series([Path(name) for name in names])


@pytest.mark.parametrize(
    "names, message",
    [
        (
            ["z1.png", "z2.png", "z4.png"],
            r"slice 3 is missing between z2.png and z4.png",
        ),
        (["z0.png", "z5.png", "z10.png", "z20.png"], r"slice 15 is missing between z10.png and z20.png"),
        (["z01.png", "z1.png"], r"z1.png: number 1 comes after 1 of z01.png"),
        (["a1_z8.png", "a1_z9.png", "a2_z1.png"], r"a2_z1.png: number 1 comes after 9 of a1_z9.png"),
        (
            ["overview.png", "z1.png", "z2.png"],
            r"overview.png: is named unlike z1.png",
        ),
    ],
)
def test_the_error_for_a_gap_or_an_odd_name_names_the_files(names, message):
    with pytest.raises(VolumeError, match=message):
        require_series([Path(name) for name in names])
