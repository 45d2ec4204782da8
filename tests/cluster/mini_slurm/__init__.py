"""A real Slurm cluster on one machine: its nodes are namespaces, and gone without a trace when its process is."""

from .cluster import MiniSlurm, unavailable

__all__ = ["MiniSlurm", "unavailable"]
