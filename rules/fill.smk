# Optional: unsegmented voxels given to the segments around them; the unfilled volume stays.


rule fill:
    input:
        segmentation=MERGED,
        image=f"{VOLUME}/raw.h5",
    output:
        segmentation=ensure(f"{OUT}/segmentation/{{volume}}/filled.h5", non_empty=True),
    log:
        f"{OUT}/logs/fill/{{volume}}.log",
    benchmark:
        f"{OUT}/benchmarks/fill.{{volume}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("fill", block(RUN.fill)),
        runtime=duration("fill", voxels_in("segment_box")),
    params:
        flags=flags(RUN.fill),
        version=__version__,
    shell:
        "ffn fill --segmentation {input.segmentation}:segmentation --image {input.image}:raw {params.flags} "
        "--out {output.segmentation}:segmentation > {log} 2>&1"
