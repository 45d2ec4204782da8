"""The links of an export."""

from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export
from ffn.viewing.state import load_state


def test_links_look_at_their_errors(tmp_path, all_sources):
    export(all_sources, tmp_path / "out", ExportConfig(num_links=1))
    assert sorted(file.stem for file in (tmp_path / "out/links").iterdir()) == ["merge-01", "split-01", "whole"]
    split = load_state(tmp_path / "out", "split-01")
    assert split["position"] == [310.5, 4.5, 29.5]
    shown = {layer["name"]: layer for layer in split["layers"]}
    assert shown["segmentation"]["segments"] == ["90", "91"] and shown["truth"]["segments"] == ["9"]
    assert shown["segmentation"]["visible"] and not shown["truth"]["visible"] and shown["errors"]["visible"]
    merge = {layer["name"]: layer for layer in load_state(tmp_path / "out", "merge-01")["layers"]}
    assert merge["truth"]["visible"] and not merge["segmentation"]["visible"]
