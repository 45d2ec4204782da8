"""The viewer refuses what an export does not have."""

import pytest

from ffn.errors import ExportError
from ffn.viewing.config import ExportConfig, ViewConfig
from ffn.viewing.export import export
from ffn.viewing.viewer import view


def test_an_unknown_segment_is_an_error(tmp_path, sources):
    export(sources, tmp_path / "out", ExportConfig())
    with pytest.raises(ExportError, match="--segments: 8 is not in .*, expected ids of its 3 segments"):
        view(tmp_path / "out", ViewConfig(segments=(9, 8)), announce=pytest.fail)
    listed = tmp_path / "out/truth/segment_properties/info"
    for damage in (lambda: listed.write_text("3"), listed.unlink):
        damage()
        with pytest.raises(ExportError, match=f"{listed}: cannot be read, expected a list of segments"):
            view(tmp_path / "out", ViewConfig(segments=(9,)), announce=pytest.fail)


def test_an_unknown_link_is_an_error(tmp_path, all_sources):
    export(all_sources, tmp_path / "out", ExportConfig(num_links=1))
    with pytest.raises(
        ExportError, match="--link: 'split-02' is not in .*, expected one of: merge-01, split-01, whole"
    ):
        view(tmp_path / "out", ViewConfig(link="split-02"), announce=pytest.fail)
