# Voxels that training may start from, by partition.


rule coordinates:
    input:
        partitions=PATHS.file("partition"),
        membrane=PATHS.file("membrane"),
        masks=MASKS,
    output:
        coordinates=ensure(PATHS.of("coordinates"), non_empty=True),
    log:
        PATHS.log("coordinates", "{volume}"),
    benchmark:
        PATHS.benchmark("coordinates", "{volume}")
    threads: 1
    resources:
        mem_mb=memory("coordinates", PIPELINE.voxels("train_box")),
        runtime=duration("coordinates", PIPELINE.voxels("train_box")),
    params:
        masks=MASKED,
        mask_stamps=MASK_STAMPS,
        flags=flags(RUN.coordinates),
    shell:
        "ffn coordinates --partitions {input.partitions} --membrane {input.membrane} {params.masks} {params.flags} "
        "--out {output.coordinates} > {log} 2>&1"
