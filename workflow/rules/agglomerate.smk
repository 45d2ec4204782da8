# Optional: scores of the contacts between supervoxels, from growing both sides again. One job per part of the volume.


rule agglomerate:
    input:
        segmentation=tracked_file(PATHS.base(RUN)),
        image=IMAGE,
        normalization=NORMALIZATION,
        masks=MASKS,
        model=MODEL,
    output:
        graph=ensure(PATHS.of("agglomerate"), non_empty=True),
    log:
        PATHS.log("agglomerate", "{volume}", "{subvolume}"),
    benchmark:
        PATHS.benchmark("agglomerate", "{volume}", "{subvolume}")
    threads: AGGLOMERATE_THREADS
    resources:
        **needs("agglomerate"),
        gpu=FLOOD_GPU,
    params:
        masks=MASKED,
        launcher=arguments.launcher,
        box=of("agglomerate", "box"),
        out=lambda wildcards, output: f"--out {output.graph}",
        model=lambda wildcards: shlex.quote(PIPELINE.models.used),
        flags=flags(RUN.agglomeration),
        machine=PATHS.machine,
    shell:
        "{params.launcher} ffn agglomerate --segmentation {input.segmentation} --image {input.image} "
        "--normalization {input.normalization} --model {params.model} --box={params.box} {params.masks} "
        "{params.flags} --machine {params.machine:q} {params.out} > {log} 2>&1"


# More parts than jobs: each job walks a list of neighbours.
use rule agglomerate as agglomerate_list with:
    output:
        record=ensure(PATHS.job("agglomerate", step=LAST), non_empty=True),
    log:
        PATHS.log("agglomerate_list", "{volume}", "{job}"),
    benchmark:
        PATHS.benchmark("agglomerate_list", "{volume}", "{job}")
    resources:
        **needs("agglomerate_list"),
        gpu=FLOOD_GPU,
    params:
        box=of("agglomerate_list", "box"),
        out=lambda wildcards, output: arguments.list_of_boxes(
            wildcards, output.record, arguments.option("--job-size", RUN.agglomerate.job_size_zyx)
        ),
