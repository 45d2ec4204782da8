# Flood filling, one job per overlapping subvolume. For the consensus, once more with reversed seeds.
GIVEN, GIVEN_FILES = arguments.known(PIPELINE, "init_segmentation")


rule segment:
    input:
        image=IMAGE,
        normalization=NORMALIZATION,
        masks=MASKS,
        given=GIVEN_FILES,
        files=[MODEL, *files_among(RUN.segment.seed_points)],
    output:
        segmentation=ensure(
            PATHS.file("segment"),
            non_empty=True,
        ),
    log:
        PATHS.log("segment{order}", "{volume}", "{subvolume}"),
    benchmark:
        PATHS.benchmark("segment{order}", "{volume}", "{subvolume}")
    threads: SEGMENT_THREADS
    resources:
        **needs("segment"),
        gpu=FLOOD_GPU,
    params:
        masks=MASKED,
        given=GIVEN,
        launcher=arguments.launcher,
        box=of("segment", "box"),
        within=lambda wildcards: f"--within={PIPELINE.places[wildcards.volume].segment_box}",
        out=lambda wildcards, output: f"--out {output.segmentation}",
        model=lambda wildcards: shlex.quote(PIPELINE.models.used),
        flags=lambda wildcards: flags(PIPELINE.orders[wildcards.order]),
        untracked=arguments.untracked(RUN.segment),
        machine=PATHS.machine,
    shell:
        "{params.launcher} ffn segment --image {input.image} --model {params.model} --box={params.box} {params.within} "
        "{params.flags} --normalization {input.normalization} {params.masks} {params.given} {params.untracked} "
        "--machine {params.machine:q} {params.out} > {log} 2>&1"


# More subvolumes than jobs, or canvases to fill: each job walks a list of neighbours, and a killed one
# continues with the missing ones.
use rule segment as segment_list with:
    output:
        record=ensure(PATHS.job("segment", step=LAST), non_empty=True),
    log:
        PATHS.log("segment_list{order}", "{volume}", "{job}"),
    benchmark:
        PATHS.benchmark("segment_list{order}", "{volume}", "{job}")
    resources:
        **needs("segment_list"),
        gpu=FLOOD_GPU,
    params:
        box=of("segment_list", "box"),
        within="",
        out=lambda wildcards, output: arguments.list_of_boxes(wildcards, output.record, flags(RUN.subvolumes)),
