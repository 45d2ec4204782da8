"""Names of many files travel in lists."""

from pathlib import Path

from ffn.io.store_names import without_metadata
from ffn.workflow import arguments
from ffn.workflow.file_lists import FileList, file_lists, write_file_lists

from .test_pipeline import pipeline

PARTS = {"volume": "second", "order": ""}


def test_a_list_has_one_file_on_each_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = pipeline()
    listed = FileList.of(made, "segment", "probability", **PARTS)
    listed.write()
    files = made.files("segment", **PARTS)
    assert Path(listed.path).read_text().splitlines() == [f"{without_metadata(file)}/probability" for file in files]
    assert Path(listed.path).parent == Path("results/small/lists")


def test_another_list_has_another_name():
    names = {FileList.of(pipeline(), "segment", **{**PARTS, "volume": name}).path for name in ("first", "second")}
    smaller = {"size_zyx": [64, 56, 40], "overlap_zyx": [14, 14, 14]}
    names.add(FileList.of(pipeline(subvolumes=smaller), "segment", **PARTS).path)
    assert len(names) == 3


def test_a_list_is_written_once_and_mended(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = FileList.of(pipeline(), "segment", **PARTS)
    listed.write()
    written = Path(listed.path).stat().st_mtime_ns
    listed.write()
    assert Path(listed.path).stat().st_mtime_ns == written
    text = Path(listed.path).read_text()
    Path(listed.path).write_text("truncated")
    listed.write()
    assert Path(listed.path).read_text() == text


def test_every_list_that_a_job_may_need_is_written():
    made = pipeline(consensus={"enabled": True}, agglomerate={"enabled": True})
    written = {f"@{listed.path}" for listed in file_lists(made)}
    for volume in ("first", "second"):
        for order in ("", "-reversed"):
            assert arguments.files(made, True, "segment", volume=volume, order=order) in written
        assert arguments.files(made, True, "segment", "probability", volume=volume, order="") in written
        assert arguments.files(made, True, "agglomerate", volume=volume) in written


def test_lists_of_an_earlier_configuration_are_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    smaller = pipeline(subvolumes={"size_zyx": [64, 56, 40], "overlap_zyx": [14, 14, 14]})
    for made in (pipeline(), smaller):
        write_file_lists(made)
        found = {str(path) for path in Path("results/small/lists").iterdir()}
        assert found == {listed.path for listed in file_lists(made)}


def test_without_lists_the_names_are_arguments():
    made = pipeline()
    assert arguments.files(made, False, "segment", **PARTS).split() == [
        without_metadata(file) for file in made.files("segment", **PARTS)
    ]
