"""Arguments of commands are quoted for the shell."""

from pathlib import Path
from types import SimpleNamespace

from snakemake.rules import Rule

from ffn.config import SegmentConfig
from ffn.geometry import Box
from ffn.io.store_names import without_metadata
from ffn.workflow import arguments
from ffn.workflow.places import Place
from ffn.workflow.run import VolumeConfig

from .runs import pipeline


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


def test_options_that_keep_the_result_are_not_tracked():
    parameter = arguments.untracked(SegmentConfig(checkpoint_seconds=3.0, max_fovs=5))
    assert parameter(None, resources={}) == "--checkpoint-seconds 3.0"
    assert Rule._is_deriving_function(parameter)


PARTS = {"volume": "second", "order": ""}


def test_a_list_of_files_is_written_under_a_name_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = pipeline(consensus={"enabled": True}, agglomerate={"enabled": True})
    arguments.write_file_lists(made)
    named = set()
    for volume in ("first", "second"):
        for order in ("", "-reversed"):
            named.add(arguments.files(made, "segment", volume=volume, order=order))
        named.add(arguments.files(made, "agglomerate", volume=volume))
    assert {f"@{path}" for path in Path("results/small/lists").iterdir()} == named and len(named) == 6
    path, lines = arguments.file_list(made, "segment", **PARTS)
    files = [without_metadata(file) for file in made.files("segment", **PARTS)]
    assert Path(path).read_text().splitlines() == lines == files
    smaller = pipeline(subvolumes={"size_zyx": [64, 56, 40], "overlap_zyx": [14, 14, 14]})
    assert arguments.files(smaller, "segment", **PARTS) not in named
