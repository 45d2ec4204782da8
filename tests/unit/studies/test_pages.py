"""Every study from files to numbers and figure."""

import json

import pytest

from ffn.cli import main
from ffn.options import flags
from ffn.studies.config import CurvesConfig, RatesConfig, ScalingConfig
from ffn.studies.runs import best_rates

from .conftest import CONFIG, STEPS, WORKERS


@pytest.mark.slow
def test_every_study_writes_numbers_and_figure(grid, measured, tmp_path, capsys):
    def options(section):
        return flags(CONFIG.part(section)).split()

    scaling, rates = f"{tmp_path}/scaling.json", f"{tmp_path}/rates.json"
    tried = [path for path in grid if "-rate-" in path]
    assert main(["study", "scaling", *measured, *options(ScalingConfig), "--out", scaling]) == 0
    assert main(["study", "learning-rate", *tried, *options(RatesConfig), "--out", rates]) == 0
    given = ["--rates", rates, "--scaling", scaling, "--out", f"{tmp_path}/curves.json"]
    assert main(["study", "curves", *grid, *options(CurvesConfig), *given]) == 0
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    law = found["rates"]["accuracy"]["power_law"]
    assert abs(law["exponent"] - 0.5) < 2 * law["stddev"]
    assert best_rates(rates)[4] == pytest.approx(8e-4)
    assert set(found["scaling"]["measured"]) == {"1", "2"} and found["scaling"]["nodes"][-1] == 64
    assert found["scaling"]["paper_model"][0] == pytest.approx(0.72, rel=1e-4)
    assert found["curves"]["targets"]["0.5"]["workers"] == list(WORKERS)
    assert len(found["curves"]["curves"]["8"]["f1"]) == len(STEPS)
    for name in found:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
