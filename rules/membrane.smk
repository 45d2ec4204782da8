# Edges of the image, and the distance of every voxel to the nearest edge.


rule membrane:
    input:
        image=IMAGE,
    output:
        membrane=ensure(PATHS.file("membrane"), non_empty=True),
    log:
        PATHS.log("membrane", "{volume}"),
    benchmark:
        PATHS.benchmark("membrane", "{volume}")
    threads: 1
    resources:
        mem_mb=memory("membrane", block_voxels(RUN.membrane)),
        runtime=duration("membrane", PIPELINE.voxels("train_box")),
    params:
        box=PIPELINE.box("train_box"),
        flags=flags(RUN.membrane),
        untracked=arguments.untracked(RUN.membrane),
    shell:
        "ffn membrane --image {input.image} --box {params.box} {params.flags} {params.untracked} "
        "--out {output.membrane} > {log} 2>&1"
