"""Every study from files to numbers, figure and page."""

import json

import pytest

from ffn.cli import main
from ffn.options import flags
from ffn.studies.config import CurvesConfig, EfficiencyConfig, RatesConfig, ScalingConfig
from ffn.studies.pages import Line, Panel, draw, write_study
from ffn.studies.trainings import best_rate

from .conftest import CONFIG, STEPS, WORKERS


@pytest.mark.slow
def test_every_study_writes_numbers_figure_and_page(grid, measured, tmp_path, capsys):
    def options(section):
        return flags(CONFIG.part(section)).split()

    scaling, rates = f"{tmp_path}/scaling.json", f"{tmp_path}/rates.json"
    tried = [path for path in grid if "-rate-" in path]
    assert main(["study", "scaling", *measured, *options(ScalingConfig), "--out", scaling]) == 0
    assert main(["study", "learning-rate", *tried, *options(RatesConfig), "--out", rates]) == 0
    for kind, section in (("curves", CurvesConfig), ("efficiency", EfficiencyConfig)):
        given = ["--rates", rates, "--scaling", scaling, "--out", f"{tmp_path}/{kind}.json"]
        assert main(["study", kind, *grid, *options(section), *given]) == 0
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    law = found["rates"]["accuracy"]["power_law"]
    assert abs(law["exponent"] - 0.5) < 2 * law["stddev"]
    assert best_rate(rates, 4) == pytest.approx(8e-4)
    assert found["scaling"]["measured"][0]["efficiency"] == 1 and found["scaling"]["nodes"][-1] == 64
    assert found["scaling"]["paper"]["model"]["fovs_per_second"][0] == pytest.approx(0.72, rel=1e-4)
    assert found["efficiency"]["targets"]["0.5"]["workers"] == list(WORKERS)
    assert len(found["curves"]["curves"]["8"]["f1"]) == len(STEPS)
    for name, study in found.items():
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        page = (tmp_path / f"{name}.html").read_text()
        assert "<svg" in page and all(word in page for word in study["statements"][0].split()[:3])


def test_the_page_escapes_text_and_is_the_same_every_time(tmp_path):
    pages = []
    for name in ("a", "b"):
        figure = draw([Panel([Line([1, 2], [3, 4])], "x", "y")])
        write_study(f"{tmp_path}/{name}.json", "A < B", {"n": 1}, figure, ["x < y & z"])
        pages.append((tmp_path / f"{name}.html").read_text())
    assert pages[0] == pages[1]
    assert "<h1>A &lt; B</h1>" in pages[0] and "<p>x &lt; y &amp; z</p>" in pages[0]
    assert json.loads((tmp_path / "a.json").read_text()) == {"n": 1, "statements": ["x < y & z"]}
