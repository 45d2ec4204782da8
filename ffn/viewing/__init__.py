"""Looking at neurons: Neuroglancer volumes, meshes and a state, and the viewer that shows them."""
