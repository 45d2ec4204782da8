"""A folder that is resumed after an interruption."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ffn.errors import ConfigError, ExportError
from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export
from ffn.viewing.resume import resumable_folder, shared_folder

from ..volumes import read_scale, write
from .conftest import BOX, SIZE_NM, segments


class TestInterruption:
    """A killed export resumes, unless its all_sources have changed."""

    def interrupt(self, monkeypatch, sources, out):
        with monkeypatch.context() as patch:
            patch.setattr("ffn.viewing.meshes.write_meshes", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                export(sources, out, ExportConfig())
        assert not out.exists()
        return out.with_name(f".{out.name}.partial")

    def times(self, folder):
        return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in folder.rglob("*.shard")}

    def test_complete_shards_are_kept(self, monkeypatch, tmp_path, all_sources):
        partial = self.interrupt(monkeypatch, all_sources, tmp_path / "out")
        before = self.times(partial)
        assert before
        export(all_sources, tmp_path / "out", ExportConfig(threads=3))
        assert before.items() <= self.times(tmp_path / "out").items()
        assert not partial.exists()
        export(all_sources, tmp_path / "at once", ExportConfig())
        for file in (tmp_path / "at once").rglob("*"):
            if file.is_file():
                other = tmp_path / "out" / file.relative_to(tmp_path / "at once")
                assert other.read_bytes() == file.read_bytes(), other

    def test_a_killed_clean_up_repeats_nothing(self, monkeypatch, tmp_path, all_sources):
        """The records go last, so half of them may be left of a finished export."""
        removed = shutil.rmtree

        def dying(path, **options):
            if Path(path).name == ".work":
                removed(path / "segmentation")
                raise KeyboardInterrupt
            removed(path, **options)

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", dying)
            with pytest.raises(KeyboardInterrupt):
                export(all_sources, tmp_path / "out", ExportConfig())
        partial = tmp_path / ".out.partial"
        before = self.times(partial)
        few = ExportConfig(num_links=0)
        copy = shutil.copytree(partial, tmp_path / ".other.partial")
        with monkeypatch.context() as patch:
            patch.setattr("ffn.viewing.work.ExportWork.create", None)  # it is an error to begin again
            export(all_sources, tmp_path / "out", ExportConfig())
        assert self.times(tmp_path / "out") == before and not partial.exists()
        assert not [name for name in (".work", ".plan.json") if (tmp_path / "out" / name).exists()]
        assert (tmp_path / "out/neuroglancer.json").exists() and len(list((tmp_path / "out/links").iterdir())) > 1
        export(all_sources, tmp_path / "other", few)
        assert copy == tmp_path / ".other.partial" and not copy.exists()
        assert len(list((tmp_path / "other/links").iterdir())) == 1, "tables do not count as blocks"

    def test_a_changed_source_starts_over(self, monkeypatch, tmp_path, all_sources):
        before = self.times(self.interrupt(monkeypatch, all_sources, tmp_path / "out"))
        write(tmp_path / "seg.h5", (segments() > 0).astype(np.uint16), BOX.start, SIZE_NM)
        export(all_sources, tmp_path / "out", ExportConfig())
        assert not before.items() & self.times(tmp_path / "out").items()
        assert np.array_equal(read_scale(tmp_path / "out/segmentation", 0), segments() > 0)

    def test_a_changed_store_starts_over(self, monkeypatch, tmp_path, all_sources):
        """A store is a folder, which keeps its name when a stage runs again."""
        sources = replace(all_sources, segmentation=write(tmp_path / "seg.zarr", segments(), BOX.start, SIZE_NM))
        self.interrupt(monkeypatch, sources, tmp_path / "out")
        write(tmp_path / "seg.zarr", (segments() > 0).astype(np.uint64), BOX.start, SIZE_NM)
        export(sources, tmp_path / "out", ExportConfig())
        assert np.array_equal(read_scale(tmp_path / "out/segmentation", 0), segments() > 0)

    def test_two_exports_at_once_are_refused(self, monkeypatch, tmp_path, all_sources):
        def again(*_, **__):
            export(all_sources, tmp_path / "out", ExportConfig())

        monkeypatch.setattr("ffn.viewing.export.ExportWork.create", again)
        with pytest.raises(ConfigError, match=r"\.out\.partial: process"):
            export(all_sources, tmp_path / "out", ExportConfig())


def test_a_block_that_fails_starts_over(tmp_path):
    with pytest.raises(ExportError), resumable_folder(tmp_path / "out", {"a": 1}) as folder:
        (folder / "half").touch()
        raise ExportError("the content is wrong")
    with resumable_folder(tmp_path / "out", {"a": 1}) as folder:
        assert not (folder / "half").exists()
        (folder / "whole").touch()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["whole"]


@pytest.mark.parametrize("opened", [resumable_folder, partial(shared_folder, begins=True)])
def test_a_killed_wipe_starts_over(tmp_path, monkeypatch, opened):
    """Also if the next call is of the plan whose files were being removed."""
    with pytest.raises(KeyboardInterrupt), opened(tmp_path / "out", {"a": 1}) as folder:
        for name in "abc":
            (folder / name).touch()
        raise KeyboardInterrupt
    unlink = Path.unlink

    def dying(self, **options):
        unlink(self, **options)
        if self.name in ("a", "b", "c"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dying)
        with pytest.raises(KeyboardInterrupt), opened(tmp_path / "out", {"a": 2}):
            pass
    with opened(tmp_path / "out", {"a": 1}) as folder:
        assert not [name for name in "abc" if (folder / name).exists()]
