"""The first lines of a plan, for a person: stages, volumes, and how long the network takes here."""

from __future__ import annotations

from ffn.geometry import extent_um
from ffn.workflow.needs import flooding_here, in_words, training_here
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.stages import STAGES

MOST_VOLUMES = 5


def plan_lines(pipeline: Pipeline) -> list[str]:
    """Return at most ten lines on a run; times are those of this machine for the network, which takes most."""
    run, model = pipeline.run, pipeline.models.costed
    counts = {name: len(pipeline.watched(name, stage.outputs[0].name)) for name, stage in STAGES.items()}
    stages = [name if count == 1 else f"{name} × {count}" for name, count in counts.items() if count]
    lines = [f"{run.run}: {', '.join(stages)}"]
    for name, place in list(pipeline.places.items())[:MOST_VOLUMES]:
        sides = " × ".join(f"{side:g}" for side in place.voxel_size_zyx_nm)
        extent = extent_um(place.image.shape, place.voxel_size_zyx_nm)
        lines.append(f"  {name}: {' × '.join(map(str, place.image.shape))} voxels of {sides} nm, {extent}")
    if len(pipeline.places) > MOST_VOLUMES:
        lines.append(f"  and {len(pipeline.places) - MOST_VOLUMES} more volumes")
    if pipeline.trained:
        fovs = run.train.max_steps * run.train.num_lanes
        lines.append(f"  training: {fovs:,} FOVs, about {in_words(training_here(model.model, fovs))} on this machine")
    if pipeline.segmented:
        voxels = sum(pipeline.places[name].segment_box.num_voxels for name in pipeline.segmented)
        flooding = in_words(flooding_here(model.flooding_model, voxels))
        lines.append(f"  flood filling: {voxels / 1e6:,.1f} million voxels, about {flooding} on this machine")
    return lines
