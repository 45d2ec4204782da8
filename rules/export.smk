# Neuroglancer precomputed volumes, meshes, skeletons, states, and all facts about the segments.


rule export:
    input:
        image=IMAGE,
        segmentation=tracked_file(PATHS.final(RUN)),
        truth=lambda wildcards: PIPELINE.shown_labels(wildcards.volume),
        errors=lambda wildcards: PIPELINE.files("evaluate", volume=wildcards.volume),
        membrane=lambda wildcards: PIPELINE.files("membrane", volume=wildcards.volume),
        coordinates=lambda wildcards: PIPELINE.files("coordinates", volume=wildcards.volume),
        subvolumes=lambda wildcards: PIPELINE.watched("segment", volume=wildcards.volume, order=""),
        mapping=lambda wildcards: PIPELINE.files("merge", "mapping", volume=wildcards.volume),
        base=lambda wildcards: PIPELINE.agglomerated_base(wildcards.volume),
    output:
        state=ensure(PATHS.of("export"), non_empty=True),
    log:
        PATHS.log("export", "{volume}"),
    benchmark:
        PATHS.benchmark("export", "{volume}")
    threads: CORES
    resources:
        mem_mb=memory("export"),
        runtime=duration("export", PIPELINE.voxels("segment_box")),
    params:
        truth=lambda wildcards, input: arguments.option("--truth", input.truth),
        errors=lambda wildcards, input: arguments.option("--errors", input.errors),
        edges=lambda wildcards, input: arguments.option("--edges", [f"{path}/edges" for path in input.membrane]),
        coordinates=lambda wildcards, input: arguments.option("--coordinates", input.coordinates),
        origins=lambda wildcards: FILES("segment", volume=wildcards.volume, order=""),
        probability=lambda wildcards: FILES("segment", "probability", volume=wildcards.volume, order=""),
        agglomeration=lambda wildcards, input: arguments.option("--agglomeration", input.mapping),
        supervoxels=lambda wildcards, input: arguments.option("--supervoxels", input.base),
        box=PIPELINE.box("segment_box"),
        folder=subpath(output.state, parent=True),
        flags=flags(RUN.export),
        untracked=arguments.untracked(RUN.export),
    shell:
        "ffn export --image {input.image} --segmentation {input.segmentation} {params.truth} "
        "{params.errors} {params.edges} {params.coordinates} --origins {params.origins} "
        "--probability {params.probability} {params.agglomeration} {params.supervoxels} "
        "--box {params.box} {params.flags} {params.untracked} --out {params.folder} > {log} 2>&1"
