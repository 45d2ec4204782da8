# Optional: parts of supervoxels that people have cut, of volumes whose corrections have cuts.


rule cut:
    input:
        segmentation=tracked_file(PATHS.base(RUN)),
        image=IMAGE,
        normalization=NORMALIZATION,
        masks=MASKS,
        model=MODEL,
        corrections=CORRECTION_FILES,
    output:
        cuts=ensure(PATHS.of("cut"), non_empty=True),
    log:
        PATHS.log("cut", "{volume}"),
    benchmark:
        PATHS.benchmark("cut", "{volume}")
    threads: AGGLOMERATE_THREADS
    resources:
        mem_mb=memory("cut"),
        runtime=by_attempt(240),
        gpu=FLOOD_GPU,
    params:
        masks=MASKED,
        launcher=arguments.launcher,
        corrections=CORRECTIONS,
        model=lambda wildcards: shlex.quote(PIPELINE.models.used),
        flags=flags(RUN.agglomeration, skip=OF_CONTACTS),
        machine=PATHS.machine,
    shell:
        "{params.launcher} ffn cut --segmentation {input.segmentation} --image {input.image} "
        "--normalization {input.normalization} --model {params.model} {params.masks} {params.corrections} "
        "{params.flags} --machine {params.machine:q} --out {output.cuts} > {log} 2>&1"
