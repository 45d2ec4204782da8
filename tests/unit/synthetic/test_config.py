import pytest
from pydantic import ValidationError

from ffn.synthetic.config import SynthConfig


def test_a_descending_range_is_refused() -> None:
    with pytest.raises(ValidationError, match="neurite_radius_nm: 50.0 20.0 is not a range"):
        SynthConfig(neurite_radius_nm=(50.0, 20.0))


@pytest.mark.parametrize("wrong", [{"radius": 3}, {"shape_zyx": (8, 64, 64)}, {"weak_spot_fading": 1.5}])
def test_unusable_options_are_refused(wrong: dict) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        SynthConfig(**wrong)
