"""Floods that went wrong say so, and others do not."""

import json

import numpy as np
import pytest

from ffn.config import SegmentConfig
from ffn.inference.flood import Facts, facts_of, findings, measured
from ffn.report.run_folder import read_flood_findings
from ffn.report.verdict import format_summary

from ..volumes import write
from .test_flood import Connected, flood_of, run, two_tubes

SEEDS = [(z, y, x) for z in (4, 6, 8) for y in (6, 12) for x in (8, 20, 31)]


class Same:
    """Engine with the same answer everywhere: a POM at the centre, and one around it."""

    def __init__(self, centre, around):
        self.answer = np.full((1, 5, 7, 9), around, np.float32)
        self.answer[0, 2, 3, 4] = centre
        self._rng = np.random.default_rng(0)

    def predict(self, image, pom_logit):
        return self.answer + self._rng.random(self.answer.shape, np.float32) / 100  # so that it moves everywhere


def facts(engine, name="z0-y0-x0", seeds=SEEDS, size=(100.0, 120.0, 110.0), **options):
    config = SegmentConfig(min_segment_um3=5e-06, disco_seed_threshold=-1, **options)
    flood = flood_of(two_tubes(), config)
    flood.begin(seeds)
    run(flood, engine)
    record = {"sanity": measured(flood.segmentation, flood.origins, size), "counters": flood.counters}
    return facts_of(name, json.loads(json.dumps(record)))


def test_tubes_thick_neurites_and_given_segments_are_fine():
    assert findings([facts(Connected())]) == []
    counters = facts(Connected()).counters
    assert findings([Facts("z0", 0.42, 1, 0, 1.04, counters)]) == []  # as on FIB-25
    assert len(findings([Facts("z0", 0.42, 1, 0, 2.6, counters)])) == 2
    assert len(findings([Facts("z0", 0.85, 1, 0, 1.04, counters)])) == 1
    assert facts(Connected()).side_um == pytest.approx((14 * 20 * 40 * 0.1 * 0.12 * 0.11) ** (1 / 3))
    # The subvolume lies in a soma.
    counters = dict.fromkeys(facts(Connected()).counters, 0) | {"seeds": 5000, "taken": 5000}
    assert findings([Facts("z0", 0.0, 0, 1, 2.6, counters)]) == []
    claims = flood_of(two_tubes(), SegmentConfig())
    claims.adopt(np.ones(claims.segmentation.shape, np.uint64))
    found = measured(claims.segmentation, claims.origins, (8.0, 8.0, 8.0))
    assert claims.segmentation.all() and (found["largest_share"], found["num_through"]) == (0, 0)


@pytest.mark.parametrize(
    ("engine", "signs"),
    [
        (
            Same(5, 5),
            [
                "a segment holds 98% of z0-y0-x0. Does the image have the contrast",
                "1 of the segments touch all six faces",
                "of 18 seeds only one became a segment",
            ],
        ),
        (Same(-5, -5), ["100% of the objects never left their seed"]),
        (Same(5, 0), ["100% of the objects never left their seed", "100% of the POM above 0.2 is below 0.8"]),
    ],
)
def test_a_network_that_answers_the_same_everywhere_is_named(engine, signs):
    found = findings([facts(engine, segment_threshold=0.4)])
    assert len([one for sign in signs for one in found if one.startswith(sign)]) == len(signs)


def write_subvolumes(run, *names, volume="cube"):
    """Write subvolumes whose floods went wrong, and the segmentation made of them."""
    made = facts(Same(5, 5))
    sanity = {name: value for name, value in made._asdict().items() if name not in ("name", "counters")}
    labels = np.ones((4, 5, 6), np.uint64)
    write(run / f"segmentation/{volume}/segmentation.zarr", labels)
    for name in names:
        record = {"sanity": sanity, "counters": dict(made.counters)}
        write(run / f"segmentation/{volume}/subvolumes/{name}.zarr", labels, record=record)


def findings_of(run):
    return read_flood_findings(run, "cube")


def test_the_summary_tells_it(tmp_path):
    write_subvolumes(tmp_path, "z0")
    write(tmp_path / "segmentation/cube/subvolumes/z4.zarr", np.ones((4, 5, 6), np.uint64))  # of another version
    (text, *_) = findings_of(tmp_path)
    assert "98% of z0." in text
    assert f"segment      cube: {text}" in format_summary(tmp_path)


def test_subvolumes_of_an_earlier_box_are_not_looked_at(tmp_path):
    write_subvolumes(tmp_path, "z000000-y000000-x000000")
    before = findings_of(tmp_path)
    write_subvolumes(tmp_path, "z000001-y000000-x000000")
    volumes = {"cube": {"synthetic": {"shape_zyx": [16, 16, 16]}}}
    (tmp_path / "config.yaml").write_text(json.dumps({"volumes": volumes}))
    assert before and findings_of(tmp_path) == before
