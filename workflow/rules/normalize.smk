# How the grey levels of a volume become those that the network was trained on; one answer for all jobs of the volume.


rule normalize:
    input:
        image=IMAGE,
        masks=MASKS,
        model=TRAINED,
    output:
        normalization=ensure(PATHS.of("normalize"), non_empty=True),
    log:
        PATHS.log("normalize", "{volume}"),
    benchmark:
        PATHS.benchmark("normalize", "{volume}")
    threads: 1
    resources:
        mem_mb=memory("normalize"),
        runtime=by_attempt(10),
    params:
        masks=MASKED,
        model=lambda wildcards: shlex.quote(PIPELINE.models.trained),
        method=lambda wildcards: arguments.image_option(PIPELINE, wildcards.volume, "normalize"),
        flags="",  # another shell line would repeat this and all that follows
    shell:
        "ffn normalize --image {input.image} --model {params.model} {params.method} {params.masks} {params.flags} "
        "--out {output.normalization} > {log} 2>&1"
