"""The benchmark of affinities joins what has high affinity, by means that are kept up to date."""

import runpy
from pathlib import Path

import numpy as np

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks/affinities.py"))
agglomerate, faces, fragment = SCRIPT["agglomerate"], SCRIPT["faces"], SCRIPT["fragment"]
joined, true_affinities = SCRIPT["joined"], SCRIPT["true_affinities"]


def test_true_affinities_give_back_the_bodies():
    labels = np.zeros((4, 24, 40), np.uint64)
    labels[:, 1:23, 1:19], labels[:, 1:23, 21:39] = 7, 9
    affinities = true_affinities(labels)
    affinities[0, ..., 0] = 1
    for size in ((40.0, 10.0, 10.0), (10.0, 10.0, 10.0)):  # by section, and in 3D
        fragments = fragment(affinities, size)
        merges = agglomerate(int(fragments.max()) + 1, *faces(fragments, affinities))
        found = joined(fragments, merges, 0.5)
        assert {len(np.unique(found[labels == body])) for body in (7, 9)} == {1}
        assert found[2, 12, 10] != found[2, 12, 30]


def test_a_join_changes_the_means_of_its_neighbours():
    pairs = np.array([[1, 2], [1, 3], [2, 3]])
    merges = agglomerate(4, pairs, np.array([0.9, 0.8, 0.3]), np.array([1, 1, 3]))
    assert [(a, b) for a, b, _ in merges][0] == (1, 2)
    assert np.allclose([lowest for *_, lowest in merges], [0.9, 1.1 / 4])
