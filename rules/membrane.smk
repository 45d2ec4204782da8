# Edges of the image, and the distance of every voxel to the nearest edge.


rule membrane_blocks:
    input:
        image=IMAGE,
    output:
        record=ensure(PATHS.job("membrane"), non_empty=True),
    log:
        PATHS.log("membrane_blocks", "{volume}", "{job}"),
    benchmark:
        PATHS.benchmark("membrane_blocks", "{volume}", "{job}")
    threads: 1
    resources:
        mem_mb=memory("membrane", block_voxels(RUN.membrane)),
        runtime=duration("membrane", PIPELINE.voxels_of_blocks("membrane")),
    params:
        box=PIPELINE.box("train_box"),
        flags=flags(RUN.membrane),
        untracked=arguments.untracked(RUN.membrane),
        store=PATHS.of("membrane"),
    shell:
        "ffn membrane --image {input.image} --box {params.box} {params.flags} {params.untracked} "
        "--job {wildcards.job} --job-record {output.record} --out {params.store} > {log} 2>&1"


rule membrane:
    input:
        image=IMAGE,
        blocks=lambda wildcards: PIPELINE.job_records("membrane", wildcards.volume),
    output:
        membrane=ensure(PATHS.file("membrane"), non_empty=True),
    log:
        PATHS.log("membrane", "{volume}"),
    benchmark:
        PATHS.benchmark("membrane", "{volume}")
    threads: 1
    resources:
        mem_mb=memory("membrane", block_voxels(RUN.membrane)),
        runtime=duration("membrane", PIPELINE.voxels_of_blocks("membrane")),
    params:
        box=PIPELINE.box("train_box"),
        flags=flags(RUN.membrane),
        untracked=arguments.untracked(RUN.membrane),
        job=PIPELINE.job_option("membrane"),
    shell:
        "ffn membrane --image {input.image} --box {params.box} {params.flags} {params.untracked} "
        "{params.job} --out {output.membrane} > {log} 2>&1"
