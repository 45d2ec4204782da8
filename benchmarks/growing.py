r"""Draw how an object grows: the POM after some FOVs, in the section of its seed.

    python benchmarks/growing.py results/demo/volumes/phantom/raw.zarr config/demo-weights docs/images/growing.png

White frames are the FOVs that see this section; the last picture leaves them out.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ffn.config import FloodConfig
from ffn.geometry import zyx
from ffn.inference.canvas import Canvas, Thresholds
from ffn.inference.flood import ObjectGrower
from ffn.inference.lanes import advance, create_engine
from ffn.io.open import open_volume
from ffn.model.normalize import Normalisation
from ffn.model.store import load_model

MOMENTS = (1, 4, 16)  # FOVs; the last picture is of the whole object


def main() -> None:
    """Grow the object and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", help="NAME.zarr")
    parser.add_argument("model", help="folder")
    parser.add_argument("out", type=Path, help="PNG to write")
    parser.add_argument(
        "--seed", type=int, nargs=3, metavar=("Z", "Y", "X"), help="voxel to start from (default: the middle)"
    )
    arguments = parser.parse_args()
    model = load_model(arguments.model)
    with open_volume(arguments.image) as volume:
        raw = volume.read()
    middle = [side // 2 for side in raw.shape]
    canvas = Canvas(Normalisation.of_model(model.config).apply(raw), model.config, Thresholds.of(FloodConfig()))
    grower, engine = ObjectGrower(canvas, zyx(arguments.seed or middle)), create_engine(model, "openvino", "float32")
    figure = Figure(figsize=(2.6 * (len(MOMENTS) + 1), 2.9), layout="constrained")
    panels = figure.subplots(1, len(MOMENTS) + 1)
    for panel, moment in zip(panels, (*MOMENTS, None), strict=True):
        while (moment is None or grower.num_fovs < moment) and advance(engine, [grower]):
            pass
        draw(panel, grower, raw, moment is not None)
    figure.savefig(arguments.out, dpi=100)


def draw(panel: Axes, grower: ObjectGrower, raw: np.ndarray, frames: bool) -> None:
    """Draw image and POM in the section of the seed, and frames of the FOVs that reach it."""
    z, *_ = grower.seed_zyx
    depth, down, right = grower.canvas.radius_zyx
    pom = 1 / (1 + np.exp(-grower.canvas.pom_logit[z]))
    panel.imshow(raw[z], cmap="gray")
    panel.imshow(np.ma.masked_invalid(pom), cmap="viridis", vmin=0, vmax=1, alpha=0.45)
    for z_fov, y, x in grower.evaluated.tolist() if frames else ():
        if abs(z_fov - z) <= depth:
            corner, size = (x - right - 0.5, y - down - 0.5), (2 * right + 1, 2 * down + 1)
            panel.add_patch(Rectangle(corner, *size, fill=False, edgecolor="white", linewidth=0.5))
    panel.set_title(f"{grower.num_fovs} FOV{'s' * (grower.num_fovs > 1)}", fontsize="medium")
    panel.set_axis_off()


if __name__ == "__main__":
    main()
