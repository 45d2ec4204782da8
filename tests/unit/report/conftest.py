"""A small run with all that a report shows, and the page as a browser sees it."""

import json
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest

from ffn.assembly.merge_graph import Evidence, MergeEdge, header
from ffn.cli import main
from ffn.evaluation.config import EvaluateConfig
from ffn.evaluation.evaluate import Inputs, evaluate
from ffn.geometry import Box

from ..volumes import write

BOX = Box.parse("10:22,0:16,4:24")
SIZE_ZYX_NM = (40.0, 10.0, 10.0)
CONFIG = "{volumes: {cube: {synthetic: {}}}, subvolumes: {size_zyx: [128, 128, 128]}}"
SUBVOLUMES = ("z000000-y000000-x000000", "z000032-y000000-x000000")
BENCHMARK = "s\th:m:s\tmax_rss\tmax_vms\tcpu_time\n{}\t0:00:01\t{}\t1\t18\n"
SCORES = {"are": 0.2, "are_precision": 0.9, "are_recall": 0.8, "voi": 1.25, "voi_split": 1.0, "voi_merge": 0.25}
SELECTION = {"best": "00000500", "box": "0:5,0:6,0:7", "metric": "voi", "convention": "all"}
SELECTION |= {"candidates": [{"name": name, "covered_fraction": 0.5, **SCORES} for name in ("00000400", "00000500")]}


class Page(HTMLParser):
    """What a browser would load and show."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.loads, self.pictures, self.text = [], [], 0, ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.loads += [value for name, value in attributes if name in ("src", "href", "srcset", "action")]
        self.pictures += tag == "img"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.text += " ".join(data.split()) + " "


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Folder of a run with one volume; tests change only copies of it."""
    run = tmp_path_factory.mktemp("results") / "tiny <run>"
    truth = np.arange(1, 9, dtype=np.uint64).reshape(2, 2, 2).repeat(6, 0).repeat(8, 1).repeat(10, 2)
    segmentation = np.where(truth > 6, 0, truth * 100)
    segmentation[:3, :4][truth[:3, :4] == 1] = 900  # a split
    segmentation[segmentation == 600] = 500  # a merger
    grey = np.random.default_rng(0).integers(0, 255, truth.shape).astype(np.uint8)
    image = write(run / "volumes/cube/raw.zarr", grey, BOX.start, SIZE_ZYX_NM)
    labels = write(run / "volumes/cube/labels.zarr", truth, BOX.start, SIZE_ZYX_NM)
    found = write(run / "segmentation/cube/segmentation.zarr", segmentation, BOX.start, SIZE_ZYX_NM)
    box = Box.parse("10:22,0:16,6:24")
    inputs = Inputs(found, labels, image=image, baseline_out=str(run / "evaluation/cube-baseline.zarr"))
    evaluate(inputs, run / "evaluation/cube.json", EvaluateConfig(), box)
    for folder in ("agglomeration/cube", "selected", "model", "benchmarks"):
        (run / folder).mkdir(parents=True)
    evidence = Evidence(*[0] * 17)
    edges = [MergeEdge(*ids, score, 10, 0, 4, 0, 0, 0, evidence) for *ids, score in ((100, 900, 0.8), (200, 300, 0.4))]
    (run / "graph.csv").write_text("\n".join([header({}).strip(), *(edge.row() for edge in edges)]) + "\n")
    scored = ["--segmentation", found, "--truth", labels, "--box", str(box)]
    out = str(run / "agglomeration/cube/sweep.json")
    assert main(["sweep", str(run / "graph.csv"), *scored, "--thresholds", "0.9", "0.6", "0.3", "--out", out]) == 0
    (run / "selected/selection.json").write_text(json.dumps(SELECTION))
    (run / "model/metrics.csv").write_text("step,loss,accuracy,f1\n10,0.7,0.5,nan\n20,0.5,0.75,0.25\n30,0.4,0.9,0.5\n")
    (run / "benchmarks/train.tsv").write_text(BENCHMARK.format(95.5, 2048.2))
    for subvolume, seconds, mib in zip(SUBVOLUMES, (20, 30), (512, "NA"), strict=True):
        (run / f"benchmarks/segment.cube.{subvolume}.tsv").write_text(BENCHMARK.format(seconds, mib))
    (run / "config.yaml").write_text(f"{CONFIG} # <script>alert(1)</script>\n")
    return run


def rescored(run, **scores):
    """Replace some of the scores of the volume."""
    path = run / "evaluation/cube.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | scores))


def make_exports(run, *names):
    for name in names:
        (run / "precomputed" / name).mkdir(parents=True)
        (run / "precomputed" / name / "neuroglancer.json").touch()


@pytest.fixture
def copied(run, tmp_path):
    """A copy of the run."""
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def undrawn(copied):
    """A copy without volumes: a page without pictures, which take most of its time."""
    for folder in ("volumes", "segmentation"):
        shutil.rmtree(copied / folder)
    return copied
