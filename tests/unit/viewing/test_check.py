"""An export is read back and compared with its sources."""

import json
import shutil

import pytest

from ffn.errors import ExportError
from ffn.io.coarser import Scale
from ffn.viewing import check, meshes
from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export


@pytest.mark.usefixtures("cloud_volume")
class TestCheck:
    """cloud-volume compares an export with its all_sources."""

    @pytest.mark.parametrize("encoding", ["jpeg", "png"])
    def test_an_export_is_equal_to_its_sources(self, tmp_path, all_sources, encoding):
        export(all_sources, tmp_path / "out", ExportConfig(image_encoding=encoding), check=True)
        assert (tmp_path / "out/neuroglancer.json").exists()

    @pytest.mark.parametrize("place", ["voxels", "offset", "resolution"])
    def test_a_difference_is_found(self, monkeypatch, tmp_path, all_sources, place):
        written = {}
        real = check.check_export

        def damaged(folder, parts, config):
            path = folder / "segmentation/info"
            info = json.loads(path.read_text())
            scale = info["scales"][0]
            if place == "voxels":
                shutil.copy(folder / "truth" / scale["key"] / "0.shard", folder / "segmentation" / scale["key"])
            elif place == "offset":
                scale["voxel_offset"][2] += 1
            else:
                scale["resolution"][0] *= 2
            path.write_text(json.dumps(info))
            written["folder"] = folder
            real(folder, parts, config)

        monkeypatch.setattr(check, "check_export", damaged)
        with pytest.raises(ExportError, match=f"--check: segmentation: {place}.*expected|--check: .* differ by"):
            export(all_sources, tmp_path / "out", ExportConfig(), check=True)
        assert not (tmp_path / "out").exists()
        assert not (written["folder"] / ".plan.json").exists(), "an export that failed is not resumed"

    def test_misplaced_meshes_are_found(self, monkeypatch, tmp_path, all_sources):
        def moved(scale, *others, write=meshes.write_meshes):
            z, y, x = scale.voxel_size_zyx_nm
            return write(Scale(scale.box, (z, y, x * 1.004)), *others)  # 0.7 voxels at the end

        monkeypatch.setattr(meshes, "write_meshes", moved)
        with pytest.raises(ExportError, match="--check: segmentation: mesh of .* reaches .* nm, expected .*zyx"):
            export(all_sources, tmp_path / "out", ExportConfig(), check=True)

    def test_without_cloud_volume_the_export_does_not_start(self, monkeypatch, tmp_path, all_sources):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ExportError, match="--check: cloud-volume is not installed, it is needed. Run: pip"):
            export(all_sources, tmp_path / "out", ExportConfig(), check=True)
        assert not (tmp_path / ".out.partial").exists()
