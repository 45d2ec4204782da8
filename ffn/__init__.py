"""Raw electron microscopy to segmented neurons with flood-filling networks."""

__version__ = "0.2.0"
