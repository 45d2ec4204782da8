import h5py
import numpy as np
import pytest
import tifffile
from PIL import Image

from ffn.cli import main
from ffn.config import IngestConfig
from ffn.geometry import Box

SHAPE = (5, 12, 20)


def image():
    return np.random.default_rng(1).integers(1, 250, SHAPE).astype(np.uint8)


def write_stack(folder):
    folder.mkdir()
    for i, plane in enumerate(image()):
        Image.fromarray(plane).save(folder / f"s{i + 8}.png")
    return str(folder)


def write_hdf5(path, **datasets):
    with h5py.File(path, "w") as file:
        for name, content in datasets.items():
            file[name] = content
    return str(path)


def test_options_reach_the_stage(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.io.ingest.ingest", lambda *given: calls.append(given))
    words = ["ingest", "stack/*.png", "--out", "raw.h5:raw", "--voxel-size", "10", "4", "4.5"]
    assert main(words) == 0
    assert main([*words, "--kind", "labels", "--offset", "-5", "0", "12", "--box", "-5:0,0:4,12:20"]) == 0
    config = IngestConfig(voxel_size_zyx_nm=(10, 4, 4.5))
    labels = config.model_copy(update={"kind": "labels", "offset_zyx": (-5, 0, 12)})
    assert calls == [
        ("stack/*.png", "raw.h5:raw", config, None),
        ("stack/*.png", "raw.h5:raw", labels, Box((-5, 0, 12), (0, 4, 20))),
    ]


def bad_stack(spoil):
    def write(folder):
        path = write_stack(folder / "stack")
        spoil(folder / "stack")
        return path

    return write


def single(name, write):
    def write_into(folder):
        write(folder / name)
        return str(folder / name)

    return write_into


CASES = {
    "missing path": (lambda folder: str(folder / "nowhere"), "", "no such file or folder"),
    "empty folder": (single("empty", lambda path: path.mkdir()), "", "is in no known format"),
    "gap": (
        bad_stack(lambda stack: (stack / "s10.png").unlink()),
        "",
        "slice 10 is missing between s9.png and s11.png",
    ),
    "colour": (
        bad_stack(lambda stack: Image.new("RGB", (20, 12)).save(stack / "s9.png")),
        "",
        "s9.png: is a colour image",
    ),
    "unequal": (
        bad_stack(lambda stack: Image.new("L", (19, 12)).save(stack / "s9.png")),
        "",
        "s9.png: is uint8 12 x 19",
    ),
    "truncated": (
        bad_stack(lambda stack: (stack / "s9.png").write_bytes((stack / "s10.png").read_bytes()[:-80])),
        "",
        "s9.png: cannot be decoded",
    ),
    "float TIFF": (
        single("a.tif", lambda path: tifffile.imwrite(path, np.zeros(SHAPE, "f4"))),
        "",
        "type float32",
    ),
    "no HDF5": (single("a.h5", lambda path: path.write_text("x")), "", "a.h5: cannot be read as HDF5"),
    "two datasets": (
        single("a.h5", lambda path: write_hdf5(path, a=image(), b=image())),
        "",
        "found ['a', 'b']",
    ),
    "no voxel size": (bad_stack(lambda stack: None), "no", "--voxel-size: is missing"),
    "zero voxel size": (bad_stack(lambda stack: None), "--voxel-size 10 0 10", "--voxel-size: found '0'"),
    "two numbers": (bad_stack(lambda stack: None), "--voxel-size 10 10", "expected 3 arguments"),
    "bad box": (bad_stack(lambda stack: None), "--box 0:9", "box: '0:9' is not a box"),
    "box outside": (
        bad_stack(lambda stack: None),
        "--box 0:6,0:4,0:4",
        "box 0:6,0:4,0:4 leaves the volume 0:5,0:12,0:20",
    ),
    "box before the offset": (
        bad_stack(lambda stack: None),
        "--offset 9 9 9 --box 0:4,0:4,0:4",
        "leaves the volume 9:14",
    ),
    "bad kind": (bad_stack(lambda stack: None), "--kind picture", "--kind: found 'picture'"),
    "empty labels": (
        bad_stack(lambda stack: [write_black(p) for p in stack.iterdir()]),
        "--kind labels",
        "every voxel is 0",
    ),
    "unquoted glob": (bad_stack(lambda stack: None), "second.png third.png", "SOURCE: found 3"),
}


def write_black(path):
    Image.new("L", (20, 12)).save(path)


@pytest.mark.parametrize("case", CASES)
def test_mistakes_are_one_line_and_leave_no_output(tmp_path, capsys, case):
    prepare, options, message = CASES[case]
    source = prepare(tmp_path)
    words = [] if options == "no" else options.split()
    if "--voxel-size" not in words and options != "no":
        words = [*words, "--voxel-size", "10", "10", "10"]
    try:
        code = main(["ingest", source, *words, "--out", f"{tmp_path}/out/raw.h5:raw"])
    except SystemExit as exit_:
        code = exit_.code
    captured = capsys.readouterr()
    assert code == 2
    (line,) = [line for line in captured.err.splitlines() if "error" in line]
    assert message in line
    assert "Traceback" not in captured.err
    assert not list(tmp_path.glob("out/*")) and not list(tmp_path.glob("out/.*"))


@pytest.mark.parametrize(
    "out, message",
    [("raw", "raw: expected FILE.h5:DATASET"), ("old.h5:raw", "holds ['labels'], expected no datasets but ['raw']")],
)
def test_unusable_outputs_are_refused(tmp_path, capsys, out, message):
    source = write_stack(tmp_path / "stack")
    write_hdf5(tmp_path / "old.h5", labels=image())
    assert main(["ingest", source, "--voxel-size", "10", "10", "10", "--out", f"{tmp_path}/{out}"]) == 2
    assert message in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old.h5", "stack"]
    with h5py.File(tmp_path / "old.h5") as file:
        np.testing.assert_array_equal(file["labels"], image())
