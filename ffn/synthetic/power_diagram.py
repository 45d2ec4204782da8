"""Power diagrams, which keep growing neurites apart and divide the volume among them."""

from __future__ import annotations

import numpy as np
from scipy.spatial import cKDTree


class PowerDiagram:
    """Division of space among balls: a point belongs to the ball with the least d² - r².

    With the radius as a fourth coordinate, this is a nearest-neighbour search.
    Source: Aurenhammer 1987, "Power diagrams: properties, algorithms and applications".

    Parameters
    ----------
    points_nm : float64 ndarray of shape (N, 3)
        Centres, zyx.
    radii_nm : float64 ndarray of shape (N,)
        Radii.

    Examples
    --------
    The point halfway between the centres of a large and a small ball belongs to the large one.

    >>> diagram = PowerDiagram(np.array([[0.0, 0, 0], [0, 0, 10]]), np.array([4.0, 1.0]))
    >>> diagram.owner(np.array([[0.0, 0, 5]])).tolist()
    [0]
    """

    def __init__(self, points_nm: np.ndarray, radii_nm: np.ndarray) -> None:
        self._points_nm = points_nm
        self._radii_nm = radii_nm
        lift = np.sqrt(radii_nm.max(initial=0.0) ** 2 - radii_nm**2)
        self._tree = cKDTree(np.column_stack([points_nm, lift]))

    def owner(self, places_nm: np.ndarray) -> np.ndarray:
        """Return the index of the ball to which each point belongs.

        Parameters
        ----------
        places_nm : float ndarray of shape (M, 3)
            Points, zyx.

        Returns
        -------
        int64 ndarray of shape (M,)
            Without any ball, the number of balls.
        """
        lifted = np.column_stack([places_nm, np.zeros(len(places_nm))])
        return np.asarray(self._tree.query(lifted)[1], dtype=np.int64)

    def clearance_nm(self, places_nm: np.ndarray) -> np.ndarray:
        """Return the distance of each point to the surface of the ball to which it belongs.

        Parameters
        ----------
        places_nm : float ndarray of shape (M, 3)
            Points, zyx.

        Returns
        -------
        float64 ndarray of shape (M,)
            Negative inside the ball; infinite without any ball.
        """
        if len(self._points_nm) == 0:
            return np.full(len(places_nm), np.inf)
        owner = self.owner(places_nm)
        return np.linalg.norm(places_nm - self._points_nm[owner], axis=1) - self._radii_nm[owner]
