# Flood filling, one job for each overlapping subvolume; for the consensus once more with reversed seeds.


rule segment:
    input:
        image=f"{VOLUME}/raw.h5",
        model=f"{USED_MODEL}/model.yaml",
        files=segment_files(RUN.segment),
    output:
        segmentation=ensure(
            f"{OUT}/segmentation/{{volume}}/subvolumes{{order}}/{{subvolume}}.h5",
            non_empty=True,
        ),
    log:
        f"{OUT}/logs/segment{{order}}/{{volume}}/{{subvolume}}.log",
    benchmark:
        f"{OUT}/benchmarks/segment{{order}}.{{volume}}.{{subvolume}}.tsv"
    conda:
        "../envs/ffn.yaml"
    threads: SEGMENT_THREADS
    resources:
        mem_mb=by_attempt(4000),
        runtime=by_attempt(240),
    params:
        box=lambda wildcards: SUBVOLUMES[wildcards.volume][wildcards.subvolume],
        model=subpath(input.model, parent=True),
        flags=lambda wildcards: flags(ORDERS[wildcards.order]),
        version=__version__,
    shell:
        "ffn segment --image {input.image}:raw --model {params.model:q} --box {params.box} {params.flags} "
        "--out {output.segmentation}:segmentation > {log} 2>&1"
