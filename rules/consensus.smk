# Optional: the segmentations with seeds forward and reversed, split wherever they disagree; both of them stay.


rule consensus:
    input:
        forward=f"{OUT}/segmentation/{{volume}}/segmentation.h5",
        backward=f"{OUT}/segmentation/{{volume}}/segmentation-reversed.h5",
    output:
        segmentation=ensure(
            f"{OUT}/segmentation/{{volume}}/consensus.h5", non_empty=True
        ),
    log:
        f"{OUT}/logs/consensus/{{volume}}.log",
    benchmark:
        f"{OUT}/benchmarks/consensus.{{volume}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("consensus", block(RUN.consensus)),
        runtime=duration("consensus", voxels_in("segment_box")),
    params:
        flags=flags(RUN.consensus, skip=("enabled",)),
        version=__version__,
    shell:
        "ffn consensus {input.forward}:segmentation {input.backward}:segmentation {params.flags} "
        "--out {output.segmentation}:segmentation > {log} 2>&1"
