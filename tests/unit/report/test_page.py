import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest

from ffn.assembly.merge_graph import MergeEdge, header
from ffn.assembly.resegment import Evidence
from ffn.cli import main
from ffn.contingency import count_pairs
from ffn.evaluation.config import EvaluateConfig
from ffn.evaluation.evaluate import References, evaluate
from ffn.geometry import Box
from ffn.io.hdf5_volume import create_volume
from ffn.io.volume import Placement
from ffn.report import pictures
from ffn.report.charts import Line, line_chart, stacked, ticks
from ffn.report.page import render, sweep_charts
from ffn.report.run_folder import read_costs, read_sweep, read_volumes
from ffn.report.score_table import format_scores, score_rows
from ffn.report.training_charts import training_charts
from ffn.training.monitoring.metrics import read_metrics

BOX = Box.parse("10:22,0:16,4:24")
SIZE_ZYX_NM = (40.0, 10.0, 10.0)
BENCHMARK = "s\th:m:s\tmax_rss\tmax_vms\tcpu_time\n{}\t0:00:01\t{}\t1\t18\n"

SCORES = {"are": 0.2, "are_precision": 0.9, "are_recall": 0.8, "voi": 1.25, "voi_split": 1.0, "voi_merge": 0.25}
SELECTION = {"best": "00000500", "box": "0:5,0:6,0:7", "metric": "voi", "convention": "all"}
SELECTION |= {"candidates": [{"name": name, "covered_fraction": 0.5, **SCORES} for name in ("00000400", "00000500")]}


class Page(HTMLParser):
    """What a browser would load, and what it would show."""

    VOID = ("meta", "link", "img", "br", "polyline", "line", "polygon", "circle")

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


def write(path, dataset, voxels, box=BOX):
    with create_volume(f"{path}:{dataset}", voxels.dtype, Placement(box, SIZE_ZYX_NM)) as writer:
        writer.write(box, voxels)
    return f"{path}:{dataset}"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Folder of a whole run, with one volume."""
    run = tmp_path_factory.mktemp("results") / "tiny <run>"
    truth = np.arange(1, 9, dtype=np.uint64).reshape(2, 2, 2).repeat(6, 0).repeat(8, 1).repeat(10, 2)
    segmentation = np.where(truth > 6, 0, truth * 100)
    segmentation[:3, :4][truth[:3, :4] == 1] = 900  # a split
    segmentation[segmentation == 600] = 500  # a merger
    rng = np.random.default_rng(0)
    image = write(run / "volumes/cube/raw.h5", "raw", rng.integers(0, 255, truth.shape).astype(np.uint8))
    labels = write(run / "volumes/cube/labels.h5", "labels", truth)
    found = write(run / "segmentation/cube/segmentation.h5", "segmentation", segmentation)
    kept = f"{run / 'evaluation/cube-baseline.h5'}:segmentation"
    box = Box.parse("10:22,0:16,6:24")
    evaluate(
        found, labels, run / "evaluation/cube.json", EvaluateConfig(), box, References(image=image, baseline_out=kept)
    )
    (run / "agglomeration/cube").mkdir(parents=True)
    evidence = Evidence(*[0] * 9)
    edges = [MergeEdge(*ids, score, 10, 0, 4, 0, 0, 0, evidence) for *ids, score in ((100, 900, 0.8), (200, 300, 0.4))]
    (run / "graph.csv").write_text("\n".join([header({}).strip(), *(edge.row() for edge in edges)]) + "\n")
    scored = ["--segmentation", found, "--truth", labels, "--box", str(box)]
    out = str(run / "agglomeration/cube/sweep.json")
    assert main(["sweep", str(run / "graph.csv"), *scored, "--thresholds", "0.9", "0.6", "0.3", "--out", out]) == 0
    (run / "selected").mkdir()
    (run / "selected/selection.json").write_text(json.dumps(SELECTION))
    (run / "model").mkdir()
    (run / "model/metrics.csv").write_text("step,loss,accuracy,f1\n10,0.7,0.5,nan\n20,0.5,0.75,0.25\n30,0.4,0.9,0.5\n")
    (run / "benchmarks").mkdir()
    (run / "benchmarks/train.tsv").write_text(BENCHMARK.format(95.5, 2048.2))
    (run / "benchmarks/segment.cube.z0.tsv").write_text(BENCHMARK.format(20, 512))
    (run / "benchmarks/segment.cube.z1.tsv").write_text(BENCHMARK.format(30, "NA"))
    (run / "config.yaml").write_text("volumes: {cube: {synthetic: {}}} # <script>alert(1)</script>\n")
    return run


def test_the_page_stands_alone_and_is_well_formed(run):
    page = Page(render(run))
    assert page.open == []
    assert all(url.startswith("data:") for url in page.loads)
    # three planes of image, truth, FFN, watershed; truth and FFN in 3D; image, truth, FFN of a split and a merger
    assert page.pictures == 3 * 4 + 2 + 2 * 3


def test_the_page_says_what_the_run_has(run):
    text = Page(render(run)).text
    scores = json.loads((run / "evaluation/cube.json").read_text())
    assert "tiny <run>" in text
    assert f"{scores['scores']['all']['are']:.3f}" in text
    assert f"{scores['baseline']['scores']['cremi']['voi']:.3f}" in text
    assert "Other data: do not rank these" in text and "1.9518" in text
    assert "1 min 36 s" in text and "2,048 MiB" in text
    assert "<script>alert(1)</script>" in text  # as text, not as a tag
    assert "xz plane, 0.18 × 0.48 µm at y = 8" in text
    assert "split-01" in text and "merge-01" in text and "All 2 listed errors" in text
    assert "merge threshold; at 1" in text and "Step 00000500 has the best VOI" in text
    assert "core hours" in text and "numpy" in text and f"CREMI score √(VOI · ARE): {scores['cremi_score']:.3f}" in text


def test_a_run_without_results_says_so(tmp_path):
    (tmp_path / "model").mkdir()
    text = Page(render(tmp_path)).text
    for sentence in (
        "Nothing has been segmented yet",
        "No training curves",
        "Nothing was measured",
        "no config.yaml",
    ):
        assert sentence in text


def test_an_unscored_volume_is_shown_without_scores(tmp_path):
    labels = np.ones(BOX.shape, np.uint64)
    write(tmp_path / "segmentation/new/segmentation.h5", "segmentation", labels)
    write(tmp_path / "volumes/new/raw.h5", "raw", labels.astype(np.uint8))
    page = Page(render(tmp_path))
    assert page.pictures == 3 * 2 + 1
    assert "Not scored" in page.text


def test_the_command_writes_the_page(run, tmp_path):
    assert main(["report", str(run), "--out", str(tmp_path / "new" / "r.html")]) == 0
    assert (tmp_path / "new" / "r.html").read_text().startswith("<!DOCTYPE html>")


def test_summary_prints_scores_and_how_to_see_more(run, capsys):
    assert main(["report", str(run), "--summary"]) == 0
    out = capsys.readouterr().out
    assert format_scores(run) in out
    assert "write it with 'ffn report" in out and "view" not in out
    (run / "report.html").touch()
    (run / "precomputed/cube").mkdir(parents=True)
    (run / "precomputed/cube/neuroglancer.json").touch()
    main(["report", str(run), "--summary"])
    out = capsys.readouterr().out
    assert str(run / "report.html") in out and f"ffn view {run}" in out


def test_the_text_table_is_aligned_and_marks_the_better(run):
    title, header, *rows, legend = format_scores(run).splitlines()
    assert title.startswith("cube, box 10:22,0:16,6:24: 6 segments, 8 bodies")
    assert header.split()[:3] == ["convention", "method", "ARE"]
    assert len(rows) == 6 and {len(row) for row in (header, *rows)} == {len(header)}
    assert "*" in rows[0] and legend == "* better of the two"


def test_better_means_lower_errors_and_higher_shares():
    keys = ("are", "are_precision", "are_recall", "voi", "voi_split", "voi_merge")
    own = {
        "scores": {"all": dict(zip(keys, (0.1, 0.8, 0.9, 1.0, 0.5, None), strict=True))},
        "covered_fraction": 0.5,
    }
    other = {"scores": {"all": dict.fromkeys(keys, 0.5)}, "covered_fraction": 1.0, "method": "watershed"}
    ffn, watershed = score_rows({**own, "baseline": other})
    assert [cell.is_better for cell in ffn.cells] == [True, True, True, False, False, False, False]
    assert [cell.is_better for cell in watershed.cells] == [False, False, False, True, False, False, False]
    assert [cell.text for cell in ffn.cells[-2:]] == ["–", "50.0 %"]


def test_costs_add_up_by_stage_in_the_order_of_the_pipeline(run):
    train, segment = read_costs(run)
    assert (train.stage, train.num_jobs, train.seconds, train.peak_mib) == ("train", 1, 95.5, 2048.2)
    assert (segment.stage, segment.num_jobs, segment.seconds) == ("segment", 2, 50)
    assert (segment.longest_seconds, segment.peak_mib, segment.cpu_seconds) == (30, 512, 36)


def test_a_baseline_of_the_middle_stands_beside_the_scores_there():
    entry = {"scores": {"all": {**SCORES}}, "covered_fraction": 0.5}
    better = {"scores": {"all": {**SCORES, "voi": 0.5}}, "covered_fraction": 0.5}
    baseline = {**entry, "method": "watershed", "box": "1:2,1:2,1:2", "beside": better}
    whole, middle, watershed = score_rows({**better, "box": "0:3,0:3,0:3", "baseline": baseline})
    assert [row.method for row in (whole, middle, watershed)] == ["FFN", "FFN, middle", "watershed, middle"]
    assert not any(cell.is_better for cell in whole.cells) and middle.cells[3].is_better


def test_run_lengths_stand_in_the_tables(run, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    path = copied / "evaluation/cube.json"
    shares = {"correct": 0.5, "split": 0.2, "omitted": 0.2, "merged": 0.1}
    erl = {
        "erl_nm": 1230.0,
        "erl_truth_nm": 4560.0,
        "nerl": 0.27,
        "length_nm": 9e4,
        "num_skeletons": 7,
        "shares": shares,
    }
    scores = json.loads(path.read_text()) | {"erl": erl, "erl_tolerant": {**erl, "erl_nm": 2340.0, "tolerance_nm": 200}}
    path.write_text(json.dumps(scores))
    text = Page(render(copied)).text
    assert "1.23" in text and "2.34" in text and "FFN, 200 nm tolerated" in text and "7 skeletons" in text
    assert "run length, FFN: 1.23 µm (NERL 0.270) of 4.56 µm; 2.34 µm" in format_scores(copied)


def test_the_links_of_an_export_are_named(run, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    assert "ffn view" not in Page(render(copied)).text
    (copied / "precomputed/cube/links").mkdir(parents=True)
    assert f"ffn view {copied} --volume cube --link NAME" in Page(render(copied)).text


def test_charts_follow_the_columns_of_the_metrics(run, tmp_path):
    loss, quality = training_charts(read_metrics(run / "model/metrics.csv"))
    assert [name for _, name, _ in quality.legend] == ["accuracy", "F1"]
    assert "nan" not in loss.svg + quality.svg
    assert training_charts(read_metrics(tmp_path / "metrics.csv")) == []
    assert training_charts([{"step": 1, "learning_rate": 0.1}]) == []


def test_charts_of_a_training_show_rate_speed_times_and_validation(tmp_path):
    (tmp_path / "model").mkdir()
    header = "step,loss,f1,learning_rate,fovs_per_second,input_ms,compute_ms,allreduce_ms,rest_ms"
    rows = ["10,2,0,0.1,4,500,500,500,500", "20,1,0.5,0.2,8,10,60,20,10", "30,0.5,0.75,0.2,8,10,60,20,10"]
    (tmp_path / "model/metrics.csv").write_text("\n".join([header, *rows, ""]))
    (tmp_path / "model/validation.csv").write_text("step,loss,f1\n0,3,0\n30,0.7,0.5\n")
    charts = training_charts(*(read_metrics(tmp_path / "model" / name) for name in ("metrics.csv", "validation.csv")))
    titles = [
        "Loss",
        "Accuracy, precision, recall, F1 (dots: validation)",
        "Learning rate",
        "FOVs/s",
        "Time of a step, ms",
    ]
    assert [chart.title for chart in charts] == titles
    assert [chart.svg.count("<circle") for chart in charts] == [2, 2, 0, 0, 0]
    assert charts[0].legend[-1][1:] == ("validation", "dots")
    assert [name for _, name, _ in charts[4].legend] == ["input", "compute", "allreduce", "rest"]
    tops = [
        float(points.split()[0].split(",")[1]) for points in re.findall('<polygon[^>]* points="([^"]*)"', charts[4].svg)
    ]
    assert np.allclose((230 - np.array(tops)) / 220, [0.1, 0.7, 0.9, 1.0], atol=1e-3)  # without the first row
    page = Page(render(tmp_path))
    assert "dots: validation" in page.text and "Best validation: F1 0.500 after step 30;" in page.text
    assert not page.open


def test_areas_lie_on_top_of_each_other():
    low, high = stacked(np.arange(2.0), {"a": np.array([1.0, 2.0]), "b": np.array([3.0, 1.0])})
    assert low.base.tolist() == [0, 0] and high.base.tolist() == low.y.tolist() == [1, 2]
    assert high.y.tolist() == [4, 3]


def curves(svg):
    """Points of every curve of a chart, on the screen."""
    found = re.findall(r'<polyline[^>]* points="([^"]*)"', svg)
    return [np.array([[float(n) for n in point.split(",")] for point in points.split()]) for points in found]


def test_a_sweep_is_drawn_from_no_merge_at_the_right_to_all_at_the_left(run):
    charts = sweep_charts(read_sweep(run, "cube"))
    names = [
        f"{name}: {c}"
        for c in ("foreground", "all")
        for name in ("Variation of information, bits", "Adapted Rand error")
    ]
    assert [chart.title for chart in charts] == names
    for voi, error in (charts[:2], charts[2:]):
        assert [name for _, name, _ in voi.legend] == ["sum", "split", "merge"] and "at 1 nothing is merged" in voi.svg
        both, split, merge = (curve[:, 1] for curve in curves(voi.svg))  # downwards on the screen, falling threshold
        assert split[0] == split[1] < split[2] == split[3]  # 0.8 joins what was split
        assert merge[0] == merge[1] == merge[2] > merge[3]  # 0.4 joins two bodies
        assert both[1] < both[2]
        ((x, y),) = [curve.T for curve in curves(error.svg)]
        assert x[0] == 462 and (np.diff(x) < 0).all() and y[1] < y[2] > y[3]
    assert sweep_charts({}) == [] and sweep_charts({"all": [{"threshold": 0.5, "voi": None, "are": None}]}) == []


def test_a_curve_lies_inside_its_frame():
    y = np.array([3.0, np.nan, -7.0, 12.0])
    svg = line_chart([Line("a", np.arange(4.0), y, "s0")], "t", "step")
    (points,) = curves(svg)
    assert len(points) == 3
    assert points[1][1] > points[0][1] > points[2][1]  # downwards on the screen
    assert all(46 <= x <= 462 and 10 <= y <= 230 for x, y in points)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.003, 0.0041), (-7, 12), (5, 5), (0, 0), (1e5, 3e6)])
def test_ticks_enclose_the_data(low, high):
    values = ticks(low, high)
    assert values[0] <= low and high <= values[-1]
    assert 2 <= len(values) <= 8
    assert np.allclose(np.diff(values), values[1] - values[0])


def test_a_segment_has_the_colour_of_its_body():
    truth = np.repeat([1, 2, 0], [30, 10, 20]).astype(np.uint64)
    segments = np.repeat([70, 0, 80, 80], [25, 5, 10, 20]).astype(np.uint64)
    bodies = pictures.best_bodies(count_pairs(truth, segments))
    assert bodies == {70: 1, 80: 2}
    gray = np.full((1, 60, 3), 0.5)
    body_colors = pictures.overlay(gray, truth.reshape(1, 60))[0]
    shown = pictures.overlay(gray, segments.reshape(1, 60), bodies)[0]
    assert np.allclose(shown[[5, 35]], body_colors[[5, 35]])
    assert np.allclose(shown[27], 0.5)  # unsegmented stays gray
    assert not np.allclose(shown[5], shown[35])


def test_colours_are_stable_and_differ():
    ids = np.array([0, 1, 2, 3, 2**63], np.uint64)
    first = pictures.colors(ids)
    assert np.array_equal(first, pictures.colors(ids)) and not first[0].any()
    assert min(np.abs(a - b).max() for i, a in enumerate(first) for b in first[:i]) > 0.1


def test_planes_keep_the_proportions_of_nanometres():
    xy, xz, yz = pictures.planes(Box.parse("10:30,0:40,0:80"), (40.0, 10.0, 20.0))
    assert (xy.size_pixels, xz.size_pixels, yz.size_pixels) == ((120, 480), (240, 480), (240, 120))
    assert (str(xy.box), str(yz.box)) == ("20:21,0:40,0:80", "10:30,0:40,40:41")


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda run: None, "has no output of a stage"),
        (
            lambda run: (run / "evaluation").mkdir() or (run / "evaluation/a.json").write_text("{"),
            "a.json: is not a score",
        ),
        (
            lambda run: (run / "evaluation").mkdir() or (run / "evaluation/a.json").write_text("{}"),
            "a.json: is not a score",
        ),
        (
            lambda run: (
                (run / "evaluation").mkdir()
                or (run / "evaluation/a.json").write_text('{"box": "0:1,0:1,0:1", "scores": {"all": {}}}')
            ),
            "a.json: is not a score file of this version",
        ),
        (
            lambda run: (run / "model").mkdir() or (run / "report.html").mkdir(),
            "report.html: cannot be written",
        ),
    ],
)
def test_bad_input_is_one_line(tmp_path, prepare, message, capsys):
    prepare(tmp_path)
    assert main(["report", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and message in errors[0]


def test_volumes_are_found_by_segmentation_or_scores(run):
    (files,) = read_volumes(run)
    assert files.name == "cube" and files.scores is not None
    assert files.baseline.endswith("cube-baseline.h5:segmentation")
