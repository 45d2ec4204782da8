import pytest

from .tables import SIZES, write_coordinates


@pytest.fixture
def paths(tmp_path) -> dict[str, str]:
    """Files of coordinates of the volumes in `SIZES`."""
    return {
        name: write_coordinates(tmp_path / f"{name}.h5", sizes, 100_000 * number)
        for number, (name, sizes) in enumerate(SIZES.items())
    }
