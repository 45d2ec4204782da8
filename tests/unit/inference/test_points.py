from pathlib import Path

import pytest

from ffn.errors import ConfigError
from ffn.inference.points import points_file, read_points


def test_points_keep_the_order_of_the_file(tmp_path):
    path = tmp_path / "seeds.csv"
    path.write_text("z,y,x\n19,39,59\n10, 20, 30\n20,-25,35\n\n11,22,33\n")
    assert read_points(str(path)).tolist() == [[19, 39, 59], [10, 20, 30], [20, -25, 35], [11, 22, 33]]


def test_a_single_point_needs_no_file():
    assert read_points("12, 22,32").tolist() == [[12, 22, 32]]
    assert points_file("12, 22,32") is None
    assert points_file("a/12.csv") == Path("a/12.csv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "seeds.csv line 1: found ''"),
        ("x,y,z\n1,2,3\n", "seeds.csv line 1: found 'x,y,z'"),
        ("z,y,x\n1,2,3\n4,5\n", "seeds.csv line 3: found '4,5'"),
        ("z,y,x\n1,2,3.5\n", "seeds.csv line 2: found '1,2,3.5'"),
        (b"z,y,x\n\xff\xfe\n", "seeds.csv"),
        ("z,y,x\n99999999999999999999,1,1\n", "seeds.csv line 2: found '9{20},1,1'"),
        (None, "seed points: found '.*seeds.csv'"),
    ],
)
def test_malformed_points_are_one_clear_error(tmp_path, content, message):
    path = tmp_path / "seeds.csv"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=message):
        read_points(str(path))
