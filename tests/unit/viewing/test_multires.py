"""Large meshes have levels of detail, cut into an octree."""

import numpy as np
import pytest

from ffn.geometry import Box

from .conftest import num_lods


def z_order(position):
    """Interleave the bits of x, y, z as text, most significant first."""
    x, y, z = (f"{n:08b}" for n in position)
    return "".join(c + b + a for a, b, c in zip(x, y, z, strict=True))


def wavy_tube():
    """Return a long tube whose mesh has several levels of detail."""
    box = Box.from_shape((24, 40, 260))
    z, y, x = np.indices(box.shape)
    wave = 20 + 8 * np.sin(x / 20)
    return box, ((z - 12) ** 2 * 4 + (y - wave) ** 2 < 90).astype(np.uint64) * 7


def test_large_meshes_have_levels_of_detail_with_fewer_triangles(make_layer):
    """Every level of a long wavy tube keeps its length."""
    volume = make_layer(*wavy_tube(), [7])
    levels = [volume.mesh.get(7, lod=lod)[7] for lod in range(num_lods(volume, 7))]
    assert len(levels) >= 3
    assert all(len(b.faces) < len(a.faces) for a, b in zip(levels, levels[1:], strict=False))
    assert all(np.ptp(mesh.vertices[:, 0]) == pytest.approx(2600, abs=40) for mesh in levels)


def test_a_level_of_detail_says_how_large_its_triangles_are(make_layer):
    """Neuroglancer chooses a level by that; with less than the truth, its first picture is crumpled."""
    volume = make_layer(*wavy_tube(), [7])
    for lod, scale in enumerate(volume.mesh.get_manifest(7).lod_scales):
        mesh = volume.mesh.get(7, lod=lod)[7]
        corners = mesh.vertices[mesh.faces]
        lengths = np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=2)
        assert lengths.mean() < scale < 3 * lengths.mean()  # the borders of the octree cut them


def test_octree_nodes_are_in_z_order_and_have_parents(make_layer):
    box = Box.from_shape((40, 80, 160))
    labels = np.full(box.shape, 3, np.uint64)
    labels[10:, 20:, 30:] = 0
    volume = make_layer(box, labels, [3])
    manifest = volume.mesh.get_manifest(3)
    assert manifest.num_lods > 1
    for lod, positions in enumerate(manifest.fragment_positions):
        codes = [z_order(position) for position in positions.astype(int)]
        assert codes == sorted(set(codes))
        if lod:
            parents = {tuple(p // 2) for p in manifest.fragment_positions[lod - 1].astype(int)}
            assert parents <= {tuple(p) for p in positions.astype(int)}
