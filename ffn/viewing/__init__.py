"""Neuroglancer: export of volumes, meshes, skeletons and states, and the viewer that shows them."""

# What comes before the last step of an export, which joins the pieces of meshes and skeletons, and writes the rest:
# prepare the folder, write the first mips, complete the others and add up what was counted, make the pieces.
PLAN, COARSE, PIECES = "plan", "coarse", "pieces"
MIPS = tuple(f"mip{mip}" for mip in range(8))  # by several jobs; of 10¹⁵ voxels, 7 · 10⁷ are left to one
STEPS = (PLAN, *MIPS, COARSE, PIECES)

STATE_FILE = "neuroglancer.json"  # of an export, written last
LINKS_FOLDER = "links"
