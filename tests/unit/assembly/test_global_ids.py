"""The ids of all subvolumes, joined by tables that are read a part at a time, are those of pair after pair."""

import itertools

import numpy as np
import pytest

from ffn.assembly.components import connected_roots
from ffn.assembly.config import ReconcileConfig
from ffn.assembly.reconcile import best_of_each_other, global_ids, needed_voxels
from ffn.assembly.subvolumes import SubvolumeTables, Tiling
from ffn.contingency import ContingencyTable, rows_of
from ffn.geometry import Box, tile

TILED = Box((3, 0, 10), (43, 60, 70))
CONFIG = ReconcileConfig(min_overlap_voxels=30, min_overlap_fraction=0.4)


def made_up(tiling, rng):
    """Return tables of subvolumes with few and many ids, ties, and pairs in several cells."""
    names = rng.integers(1, 2**64, 30, dtype=np.uint64, endpoint=False)
    ids = [rng.choice(names, rng.integers(0, 9), replace=False) for _ in range(len(tiling))]
    learnt = []
    for index, of_subvolume in enumerate(ids):
        own, claims = of_subvolume.astype(np.int64), [np.empty((0, 7), np.int64)]
        for other in tiling.overlapped_by(index):
            pairs = list(itertools.product(own, ids[other].astype(np.int64), (0, 8), (16, 24)))
            chosen = rng.permutation(len(pairs))[: rng.integers(0, 1 + len(own))]
            rows = [(other, a, b, z, 0, x, rng.choice([5, 40, 90])) for a, b, z, x in (pairs[row] for row in chosen)]
            claims.append(np.array(rows, np.int64).reshape(-1, 7))
        places = rng.integers(0, 70, (len(own), 3))
        learnt.append(
            {
                "ids": of_subvolume,
                "voxels": rng.integers(40, 300, len(own)),
                "in_core": rng.random(len(own)) < 0.8,
                "claims": np.concatenate(claims),
                "origins": np.column_stack([own, places, places[:, :2]]),
                "overlaps": np.column_stack([own, np.roll(own, 1), places // 24 * 24, places[:, :1]]),
            }
        )
    return learnt


def joined_pair_by_pair(tiling, learnt):
    """Return ``matches``, and the tables by subvolume, id and place, as they follow from one overlap after another."""
    node = {key: n for n, key in enumerate((s, i) for s, each in enumerate(learnt) for i in each["ids"].tolist())}
    voxels = np.concatenate([each["voxels"] for each in learnt])
    edges, claimed, origins = [], [], []
    for first, each in enumerate(learnt):
        for second in np.unique(each["claims"][:, 0]).tolist():
            counts: dict[tuple[int, int], int] = {}
            for _, a, b, *cell, count in each["claims"][each["claims"][:, 0] == second].tolist():
                pair = node[first, a % 2**64], node[second, b % 2**64]
                counts[pair] = counts.get(pair, 0) + count
                claimed.append((*pair, *cell, count))
            table = ContingencyTable(*np.array([(*pair, count) for pair, count in counts.items()]).T)
            whole, box = (voxels[table.a], voxels[table.b]), tiling[first].intersect(tiling[second])
            share = min(n / side for n, side in zip(box.shape, tiling[first].shape, strict=True))
            best = best_of_each_other(table, needed_voxels(whole, share, CONFIG), CONFIG)
            edges += rows_of(table)[best, :2].tolist()
        own = {key: node[first, key] for key in each["ids"].tolist()}
        claimed += [(own[a % 2**64], own[b % 2**64], *rest) for a, b, *rest in each["overlaps"].tolist()]
        origins += [(own[a % 2**64], *rest) for a, *rest in each["origins"].tolist()]
    roots = connected_roots(len(node), np.array(edges, np.int64).reshape(-1, 2))
    objects = np.unique(roots[np.concatenate([each["in_core"] for each in learnt])]).tolist()
    number = [objects.index(root) + 1 if root in objects else 0 for root in roots.tolist()]
    overlaps: dict[tuple[int, ...], int] = {}
    for a, b, *cell, count in claimed:
        a, b = sorted((number[a], number[b]))
        if 0 < a < b:
            overlaps[a, b, *cell] = overlaps.get((a, b, *cell), 0) + count
    ascending = [(s, i) for s, each in enumerate(learnt) for i in sorted(each["ids"].tolist())]
    return {
        "ids": [i for _, i in ascending],
        "numbers": [number[node[key]] for key in ascending],
        "matches": [len(edges)],
        "first": np.cumsum([0, *(len(each["ids"]) for each in learnt)]).tolist(),
        "overlaps": sorted([*key, count] for key, count in overlaps.items()),
        "origins": sorted([number[n], *rest] for n, *rest in origins if number[n]),
    }


@pytest.mark.parametrize("seed", range(4))
def test_all_subvolumes_at_once_give_what_pairs_give(seed, tmp_path, monkeypatch):
    rng = np.random.default_rng(seed)
    monkeypatch.setattr("ffn.io.scratch.ROWS_AT_ONCE", int(rng.integers(1, 200)))
    monkeypatch.setattr("ffn.io.scratch.ROWS_TO_SORT", int(rng.integers(5, 100)))
    monkeypatch.setattr("ffn.io.scratch.MAX_WAITING", 500)
    z, y, x = (tuple(ranges) for ranges in tile(TILED, (24, 30, 28), (8, 10, 12)).ranges_zyx)
    tiling = Tiling((z, y, x))
    learnt = made_up(tiling, rng)
    found = global_ids(SubvolumeTables(learnt, tmp_path), tiling, CONFIG, tmp_path)
    expected = joined_pair_by_pair(tiling, learnt)
    assert {name: table[:].tolist() for name, table in found.items()} == expected
    assert expected["overlaps"] and 0 < expected["matches"][0] and max(expected["numbers"]) > 1
    assert not list(tmp_path.iterdir())
