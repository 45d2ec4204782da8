"""Neuroglancer: export of volumes, meshes, skeletons and states, and the viewer that shows them."""
