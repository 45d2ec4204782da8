# Neuroglancer precomputed volumes, meshes, skeletons, states, and all facts about the segments.

EXPORTED = {
    "image": IMAGE,
    "segmentation": tracked_file(PATHS.final(RUN)),
    "truth": lambda wildcards: PIPELINE.shown_labels(wildcards.volume),
    "base": tracked_file(PATHS.base(RUN)),
}


rule export:
    input:
        **EXPORTED,
        errors=lambda wildcards: PIPELINE.files("evaluate", volume=wildcards.volume),
        blocks=of("export", "files"),
    output:
        state=ensure(PATHS.of("export"), non_empty=True),
    log:
        PATHS.log("export", "{volume}"),
    benchmark:
        PATHS.benchmark("export", "{volume}")
    threads: CORES
    resources:
        **needs("export"),
    params:
        truth=lambda wildcards, input: arguments.option("--truth", input.truth),
        errors=lambda wildcards, input: arguments.option("--errors", input.errors),
        supervoxels=lambda wildcards, input: arguments.option(
            "--supervoxels", [input.base] if RUN.agglomerate.enabled else []
        ),
        box=of("export", "box"),
        folder=subpath(output.state, parent=True),
        flags=flags(RUN.export),
        untracked=arguments.untracked(RUN.export),
        job=of("export", "option"),
    shell:
        "ffn export --image {input.image} --segmentation {input.segmentation} {params.truth} "
        "{params.errors} {params.supervoxels} --box={params.box} {params.flags} {params.untracked} {params.job} "
        "--out {params.folder} > {log} 2>&1"


# Parts of the blocks of a large volume, without the tables that only the last job needs.
use rule export as export_blocks with:
    input:
        **EXPORTED,
        earlier=of("export_blocks", "files"),
    output:
        record=ensure(PATHS.job("export"), non_empty=True),
    log:
        PATHS.log("export_blocks", "{volume}", "{step_name}-{job}"),
    benchmark:
        PATHS.benchmark("export_blocks", "{volume}", "{step_name}-{job}")
    threads: 1
    params:
        errors="",
        folder=PATHS.folder("export"),
        job=arguments.job,


use rule export_blocks as export_plan with:
    input:
        **EXPORTED,
        earlier=of("export_plan", "files"),
    output:
        record=ensure(PATHS.tables("export", "plan"), non_empty=True),
    log:
        PATHS.log("export_plan", "{volume}"),
    benchmark:
        PATHS.benchmark("export_plan", "{volume}")
    params:
        job="--step plan",


use rule export_blocks as export_coarse with:
    input:
        **EXPORTED,
        earlier=of("export_coarse", "files"),
    output:
        record=ensure(PATHS.tables("export", "coarse"), non_empty=True),
    log:
        PATHS.log("export_coarse", "{volume}"),
    benchmark:
        PATHS.benchmark("export_coarse", "{volume}")
    params:
        job="--step coarse",


use rule export_blocks as export_pieces with:
    input:
        **EXPORTED,
        earlier=of("export_pieces", "files"),
    output:
        record=ensure(PATHS.tables("export", "pieces"), non_empty=True),
    log:
        PATHS.log("export_pieces", "{volume}"),
    benchmark:
        PATHS.benchmark("export_pieces", "{volume}")
    params:
        job="--step pieces",
