"""Affinities join fragments to groups, which the segments that cover them mostly take, whatever the tiles and jobs."""

import numpy as np
import pytest

from ffn.assembly.config import FillConfig
from ffn.assembly.fill import fill
from ffn.assembly.fragments import Bodies, settle, without_runaways
from ffn.assembly.given import NOTHING_GIVEN, Constraints, Correction, corrections_text
from ffn.config import Mask
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.volume import Placement

from ...jobs import require_same_files, running
from ...volumes import create_volumes
from ..volumes import read, write

SHAPE, SIZE = (6, 8, 40), (30.0, 10.0, 10.0)
CONFIG = FillConfig(block_size_zyx=(4, 8, 12))


def joined(pairs, apart=(), voxels=(1,) * 9, least=0.35):
    """Return the joined pairs of groups, of pairs with mean and number of faces (along z and) in the section."""
    rows = [(a, b, *(0, 0) * (len(faces) == 2), *faces) for a, b, *faces in pairs]
    links = np.array([(a, b, round(255 * z * m), m, round(255 * yx * n), n) for a, b, z, m, yx, n in rows])
    found = Bodies(links, np.reshape(apart, (-1, 2)), np.array(voxels), SIZE).run(lambda *_: 255 * least)
    return set(map(tuple, np.sort(found, axis=1).tolist()))


def test_a_join_changes_the_means_of_its_neighbours():
    pairs = [(1, 2, 0.9, 1), (1, 3, 0.8, 1), (2, 3, 0.1, 3)]
    assert joined(pairs) == {(1, 2)}  # what is left has (0.8 + 3 * 0.1) / 4
    assert len(joined(pairs, least=0.25)) == 2


def test_the_faces_in_the_section_count_as_much_as_those_along_z():
    assert not joined([(1, 2, 0.5, 100, 0.1, 2)])
    assert joined([(1, 2, 0.5, 100, 0.3, 2)]) == joined([(1, 2, 0.5, 100, 0, 0)]) == {(1, 2)}


def test_two_large_groups_need_more_also_when_they_have_grown():
    large = round(0.13e9 / (30 * 10 * 10))  # 0.13 µm³, a hundred times what is small
    chain = [(1, 2, 0.44, 1)]
    assert joined(chain, voxels=[1, large, 1]) == {(1, 2)}
    assert not joined(chain, voxels=[1, large, large])
    assert joined([*chain, (2, 3, 0.9, 1)], voxels=[1, large, 1, large]) == {(2, 3)}


def test_nothing_joins_what_people_keep_apart():
    pairs = [(0, 3, 0.99, 1), (3, 4, 0.98, 1), (1, 4, 0.97, 1), (2, 4, 0.96, 1)]
    assert joined(pairs, apart=[(0, 1)]) == {(0, 3), (0, 4), (0, 2)}


def test_a_segment_of_several_bodies_is_let_go_even_if_they_touch_where_no_membrane_is_seen():
    def owners(sizes, *edges, given=()):
        own = np.array([7, 7, 7, 8], np.uint64)
        contacts = np.insert(np.array(edges), 2, [[0], [0]], axis=1)  # all in the section
        return without_runaways(own, np.array(sizes), contacts, np.array(given, np.uint64)).tolist()

    leaks = [(0, 1, 255 * 10, 100), (1, 2, 255 * 29, 100), (2, 3, 0, 100)]
    assert owners([4, 3, 3, 9], *leaks) == [0, 0, 0, 8]
    assert owners([8, 1, 1, 9], *leaks) == owners([4, 3, 3, 9], *leaks, given=[7]) == [7, 7, 7, 8]
    assert owners([4, 3, 3, 9], (0, 1, 255 * 30, 100)) == [7, 7, 7, 8], "the third is alone"


def settled(covered, links=(), given=NOTHING_GIVEN):
    """Return the owners of the fragments."""
    part = {"covered": np.array(covered, np.uint64), "links": np.reshape(links, (-1, 4)).astype(int)}
    return settle([part], CONFIG, given, SIZE)["owners"].tolist()


def test_bodies_that_a_segment_has_joined_become_new_ones_unless_it_is_most_of_one():
    links = [(1, 2, 4, 0), (1, 2, 5, 100)]
    assert settled([(1, 7, 13), (2, 7, 7)], links) == [8, 9]
    assert settled([(1, 7, 15), (2, 7, 5)], links) == [7, 7]


def test_fragments_of_two_segments_need_more_affinity():
    links = [(1, 2, 4, 50 * 255), (1, 2, 5, 100)]
    assert settled([(1, 7, 9), (2, 8, 4)], links) == [7, 8]
    assert settled([(1, 7, 9), (2, 0, 3), (2, 8, 1)], links) == settled([(1, 7, 9), (2, 0, 4)], links) == [7, 7]


def test_affinities_decide_which_segment_a_fragment_has_unless_corrections_separate_it():
    covered = [(1, 7, 13), (2, 7, 7), (3, 8, 9)]
    links = [(1, 2, 4, 0), (1, 2, 5, 100), (2, 3, 4, 200 * 255), (2, 3, 5, 200)]
    assert settled(covered, links) == [7, 8, 8]
    assert settled(covered, links, Constraints(apart=np.array([(7, 8)], np.uint64))) == [7, 7, 8]


@pytest.fixture
def scene(tmp_path):
    """Write bodies along x: segment 7 covers most of fragment 1, all of 2 and little of 3; 4 has none."""
    labels = np.zeros(SHAPE, np.uint64)
    labels[..., 3:23] = 7
    return written(tmp_path, np.broadcast_to(np.repeat([1, 2, 3, 4], 10), SHAPE), labels)


def written(folder, fragments, labels):
    """Write what is joined, with a membrane between the second fragment and the third."""
    volumes = {name: np.full(SHAPE, 255, np.uint8) for name in "zyx"}
    volumes["x"][..., 20], volumes["x"][..., 30] = 10, 200
    kinds = {"fragments": np.uint64} | dict.fromkeys("zyx", np.uint8)
    with create_volumes(folder / "affinities.zarr", kinds, Placement(Box.from_shape(SHAPE), SIZE)) as writers:
        for name, voxels in {"fragments": fragments.astype(np.uint64), **volumes}.items():
            writers[name].write(Box.from_shape(SHAPE), voxels)
    specs = {
        name: write(folder / f"{name}.zarr", v, (0, 0, 0), SIZE)
        for name, v in (("segmentation", labels), ("image", np.full(SHAPE, 9, np.uint8)))
    }
    return str(folder / "affinities.zarr"), specs


def test_segments_take_fragments_and_the_rest_becomes_new(scene, tmp_path):
    affinities, specs = scene
    mask = Mask.model_validate({"box": "0:6,0:8,38:40"})
    fill(out := f"{tmp_path}/out.zarr", CONFIG, (mask,), affinities=affinities, **specs)
    expected = np.broadcast_to(np.repeat([7, 8, 0], [20, 18, 2]), SHAPE)
    assert np.array_equal(read(out), expected)


@pytest.mark.parametrize("stop", [12, 23], ids=["of no segment", "of the larger one"])
def test_a_fragment_is_divided_where_people_have_separated_its_segments(tmp_path, stop):
    labels = np.zeros(SHAPE, np.uint64)
    labels[..., 3:stop], labels[..., 30:33] = 7, 8
    affinities, specs = written(tmp_path, np.ones(SHAPE), labels)
    (tmp_path / "c.csv").write_text(corrections_text([Correction("cut", (1, 1, 5), (1, 1, 31))]))
    fill(out := f"{tmp_path}/out.zarr", CONFIG, affinities=affinities, corrections=f"{tmp_path}/c.csv", **specs)
    assert np.array_equal(read(out)[labels > 0], labels[labels > 0])


def test_voxels_without_a_fragment_keep_their_segment(tmp_path):
    """As in a dark section: 3 has joined 5, nothing has joined 7, 9 has next to nothing elsewhere."""
    fragments, labels = np.zeros(SHAPE, int), np.zeros(SHAPE, np.uint64)
    fragments[:2] = fragments[3:] = np.repeat([1, 2, 3, 4], 10)
    labels[...] = np.repeat([3, 5, 7, 0], 10)
    labels[2, :, 30:35] = labels[3, 0, 0] = 9
    affinities, specs = written(tmp_path, fragments, labels)
    out = f"{tmp_path}/out.zarr"
    fill(out, CONFIG, (Mask.model_validate({"box": "2:3,0:8,0:2"}),), affinities=affinities, **specs)
    found = read(out)
    assert (found[3] == np.repeat([5, 7], 20)).all()
    assert (found[2] == np.repeat([0, 5, 7, 9, 0], [2, 18, 10, 5, 5])).all()


def test_jobs_and_tiles_change_nothing(scene, tmp_path):
    affinities, specs = scene

    command = ["fill", "--affinities", affinities, "--block-size", "4", "8", "12"]
    command += [word for name, spec in specs.items() for word in (f"--{name}", spec)]
    require_same_files(running(command, "out.zarr"), tmp_path, ["compete 2-of-2", "compete", "1-of-1", ""])
    fill(f"{tmp_path}/tiles.zarr", FillConfig(block_size_zyx=(3, 5, 9)), affinities=affinities, **specs)
    fill(f"{tmp_path}/one.zarr", CONFIG, affinities=affinities, **specs)
    assert np.array_equal(read(f"{tmp_path}/one.zarr"), read(f"{tmp_path}/tiles.zarr"))


def test_new_ids_are_those_of_no_segment_not_even_of_one_without_a_fragment():
    assert settled([(1, 7, 10), (1, 8, 3), (5, 0, 10)]) == [7, 9]
    with pytest.raises(VolumeError):  # after it, new ids would begin at 0
        settled([(1, 2**64 - 1, 10), (1, 8, 3), (5, 0, 10)])
