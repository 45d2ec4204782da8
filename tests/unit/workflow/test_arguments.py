"""Arguments of commands are quoted for the shell."""

import shlex
from types import SimpleNamespace

from snakemake.io import contains_wildcard
from snakemake.rules import Rule

from ffn.config import SegmentConfig
from ffn.geometry import Box
from ffn.workflow import arguments
from ffn.workflow.places import Place
from ffn.workflow.run import VolumeConfig


def test_an_option_without_files_is_nothing():
    assert arguments.option("--truth", []) == ""


def test_files_are_quoted_with_their_dataset():
    text = arguments.option("--probability", ["a b.h5", "c'd.h5"], ":probability")
    assert shlex.split(text) == ["--probability", "a b.h5:probability", "c'd.h5:probability"]


def test_variables_of_a_node_reach_the_node():
    assert arguments.staging(None, {"stage_to": "$TMPDIR"}) == "--stage-to '$TMPDIR'"
    assert arguments.staging(None, {}) == ""


def test_only_labels_are_moved_and_only_where_the_configuration_says_so():
    def sources(**more):
        volume = VolumeConfig(image="raw.h5", labels="my labels.h5", **more)
        place = Place(Box.from_shape((9, 9, 9)), Box.from_shape((9, 9, 4)), (30, 8, 8), volume)
        pipeline = SimpleNamespace(run=SimpleNamespace(volumes={"cube": volume}), places={"cube": place})
        return [arguments.source(pipeline, "cube", key) for key in ("image", "labels")]

    assert sources() == ["raw.h5 --voxel-size 30.0 8.0 8.0", "'my labels.h5' --voxel-size 30.0 8.0 8.0"]
    image, labels = sources(labels_offset_zyx=(2, -1, 0))
    assert image == sources()[0] and labels == f"{sources()[1]} --offset 2 -1 0"
    image, labels = sources(ignore_labels=(-1, 7))
    assert image == sources()[0] and labels == f"{sources()[1]} --ignore-labels -1 7"
    image, labels = sources(mip=0)
    assert image == f"{sources()[0]} --mip 0" and labels == sources()[1]
    image, labels = sources(image_box="0:9,0:9,0:9")
    assert image == f"{sources()[0]} --box=0:9,0:9,0:9" and labels == f"{sources()[1]} --box=0:9,0:9,0:4"


def test_options_that_keep_the_result_are_a_parameter_that_snakemake_does_not_track():
    parameter = arguments.untracked(SegmentConfig(checkpoint_seconds=3.0, max_fovs=5))
    assert parameter(None, resources={}) == "--checkpoint-seconds 3.0"
    assert Rule._is_deriving_function(parameter)


def test_a_path_that_is_no_input_is_watched_by_a_parameter(tmp_path):
    mask = tmp_path / "{mask}.h5"
    mask.write_bytes(b"1")
    assert arguments.inputs(str(mask), "b.h5") == ["b.h5"]
    before = arguments.stamps(str(mask), "b.h5")
    mask.write_bytes(b"22")
    assert arguments.stamps(str(mask), "b.h5") != before


def test_an_input_behind_a_link_is_the_users_file():
    assert arguments.inputs("link/../mask.h5", "././mask.h5") == ["link/../mask.h5", "mask.h5"]


def test_snakemake_sees_no_wildcard_in_a_quoted_path():
    text = arguments.option("--mask", ["{a}'{b}.h5"])
    assert shlex.split(text) == ["--mask", "{a}'{b}.h5"]
    assert contains_wildcard("{a}") and not contains_wildcard(text)
