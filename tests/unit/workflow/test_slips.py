"""Slips in a configuration."""

import pytest

from ffn.config import _checked_path
from ffn.errors import ConfigError
from ffn.training.config import TrainConfig
from ffn.workflow.run import MAX_NAME, load_run

VOLUME = {"image": "raw.h5:raw", "labels": "labels.h5:labels"}


@pytest.mark.parametrize("image", ["C:\\data\\raw.h5", "\\\\server\\raw.h5", "$DATA/raw.h5", "${DATA}/raw.h5"])
def test_a_path_of_another_system_is_named(image):
    with pytest.raises(ConfigError, match="image.*Write"):
        load_run({"volumes": {"cube": VOLUME | {"image": image}}})


def test_a_home_folder_is_expanded_and_a_dollar_in_a_name_or_url_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a$b.h5").touch()
    assert _checked_path("~/raw.h5:raw") == "/home/me/raw.h5:raw"
    for path in ("a$b.h5:raw", "https://host/raw.zarr?key=$a"):
        assert _checked_path(path) == path


@pytest.mark.parametrize("values", [{"run": 7}, {"volumes": {False: VOLUME}}, {"volumes": {7: VOLUME}}])
def test_a_name_that_yaml_takes_for_something_else_belongs_in_quotes(values):
    with pytest.raises(ConfigError, match="quotes"):
        load_run({"volumes": {"cube": VOLUME}} | values)


def test_a_name_has_at_most_so_many_letters():
    load_run({"volumes": {"x" * MAX_NAME: VOLUME}})
    with pytest.raises(ConfigError, match=str(MAX_NAME)):
        load_run({"volumes": {"x" * (MAX_NAME + 1): VOLUME}})


def test_whole_numbers_may_have_an_exponent():
    assert TrainConfig(max_steps="1e5").max_steps == 100_000
    with pytest.raises(ValueError):
        TrainConfig(max_steps="1.5e0")
