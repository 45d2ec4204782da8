"""Surfaces with fewer triangles that still look smooth."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import zmesh

REDUCTION = 4  # triangles for one that is left; a surface at half the resolution has a quarter
ROUNDS = 5  # remove the steps between voxels, and the creases of simplification; more would remove spines
WEIGHTS = (0.5, -0.53)  # of a round: shrink, then inflate, which keeps the volume (Taubin 1995)


def simplify(mesh: zmesh.Mesh) -> zmesh.Mesh:
    """Return a closed surface with a quarter of the triangles, smoothed; one without triangles if it is tiny."""
    return smooth(zmesh.simplify_fqmr(mesh, target_count=len(mesh.faces) // REDUCTION))


def smooth(mesh: zmesh.Mesh) -> zmesh.Mesh:
    """Return a closed surface whose vertices are moved to where their neighbours are, on average."""
    neighbours = _neighbours(mesh)
    degrees = neighbours.sum(axis=1)[:, None]
    vertices = mesh.vertices.astype(np.float32)
    for weight in WEIGHTS * ROUNDS:
        vertices += weight * (neighbours @ vertices / degrees - vertices)
    return zmesh.Mesh(vertices, mesh.faces, None)


def _neighbours(mesh: zmesh.Mesh) -> scipy.sparse.csr_array:
    """Sparse matrix of the edges; a vertex is a neighbour of itself, so that one without triangles stays."""
    own = np.arange(len(mesh.vertices))
    # Closed surfaces have every edge in both directions, once in each of two triangles.
    ends = np.concatenate([np.stack([own, own], 1), *(mesh.faces[:, pair] for pair in ([0, 1], [1, 2], [2, 0]))])
    return scipy.sparse.csr_array((np.ones(len(ends), np.float32), ends.T), shape=(len(own), len(own)))
