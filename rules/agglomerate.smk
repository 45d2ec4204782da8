# Optional: scores of the contacts between base segments, from growing both sides again. One job per part of the volume.


rule agglomerate:
    input:
        segmentation=tracked_file(PATHS.base(RUN)),
        image=IMAGE,
        normalization=NORMALIZATION,
        masks=MASKS,
        model=arguments.inputs(MODEL),
    output:
        graph=ensure(PATHS.of("agglomerate"), non_empty=True),
    log:
        PATHS.log("agglomerate", "{volume}", "{subvolume}"),
    benchmark:
        PATHS.benchmark("agglomerate", "{volume}", "{subvolume}")
    threads: AGGLOMERATE_THREADS
    resources:
        mem_mb=agglomeration_memory(RUN.model, RUN.agglomerate, GPUS),
        runtime=flooding(RUN.model, PIPELINE.voxels_of_job("contact_boxes")),
        gpu=min(1, GPUS),
    params:
        masks=MASKED,
        mask_stamps=MASK_STAMPS,
        launcher=arguments.launcher,
        box=PIPELINE.box_of_job("contact_boxes"),
        model=lambda wildcards: quote(PIPELINE.used_model),
        stamps=arguments.stamps(MODEL),
        flags=flags(RUN.agglomerate),
        untracked=arguments.untracked(RUN.agglomerate),
        machine=PATHS.machine,
    shell:
        "{params.launcher} ffn agglomerate --segmentation {input.segmentation} --image {input.image} "
        "--normalization {input.normalization} --model {params.model} --box {params.box} {params.masks} {params.flags} {params.untracked} "
        "--machine {params.machine:q} --out {output.graph} > {log} 2>&1"
