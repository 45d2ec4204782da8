"""The command line of `ffn evaluate`."""

import pytest

from ffn.cli import main
from ffn.evaluation.evaluate import References
from ffn.geometry import Box

NEEDED = ["evaluate", "--segmentation", "s.h5:s", "--truth", "t.h5:t", "--out", "scores.json"]


@pytest.fixture
def calls(monkeypatch):
    given = []
    monkeypatch.setattr("ffn.evaluation.evaluate.evaluate", lambda *arguments: given.append(arguments))
    return given


def test_inputs_and_references_are_passed_on(calls):
    extra = ["--image", "raw.h5:raw", "--baseline-out", "b.h5:b", "--skeletons", "s.h5", "--box", "0:1,0:2,0:3"]
    assert main([*NEEDED, *extra]) == 0
    ((segmentation, truth, out, _, box, references),) = calls
    assert (segmentation, truth, out, box) == ("s.h5:s", "t.h5:t", "scores.json", Box((0, 0, 0), (1, 2, 3)))
    assert references == References("raw.h5:raw", None, "b.h5:b", "s.h5")


def test_without_watershed_the_image_is_not_used(calls):
    assert main([*NEEDED, "--image", "raw.h5:raw", "--no-watershed"]) == 0
    assert calls[0][-1] == References()


def test_there_is_one_baseline(calls, capsys):
    with pytest.raises(SystemExit):
        main([*NEEDED, "--image", "raw.h5:raw", "--baseline", "b.h5:b"])
    assert "not allowed with" in capsys.readouterr().err and not calls
