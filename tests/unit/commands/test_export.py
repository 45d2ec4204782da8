"""The command line of `ffn export`."""

from ffn.cli import main
from ffn.viewing.inputs import Sources


def test_every_input_is_passed_on(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.viewing.export.export", lambda *given: calls.append(given))
    names = ("image", "segmentation", "truth", "supervoxels", "agglomeration", "errors", "edges", "coordinates")
    options = [word for name in names for word in (f"--{name}", f"{name}.h5")]
    several = ["--origins", "a.h5", "b.h5", "--probability", "c.h5:p"]
    assert main(["export", *options, *several, "--out", "out", "--check", "--threads", "3"]) == 0
    ((sources, out, config, box, check),) = calls
    given = {name: f"{name}.h5" for name in names} | {"origins": ("a.h5", "b.h5"), "probability": ("c.h5:p",)}
    assert sources == Sources(**given) and vars(sources) == given
    assert (out, config.threads, box, check) == ("out", 3, None, True)
