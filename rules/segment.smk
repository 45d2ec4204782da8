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
    envmodules:
        *MODULES,
    threads: SEGMENT_THREADS
    resources:
        mem_mb=memory("segment", voxels_of_job(SUBVOLUMES)),
        runtime=flooding(voxels_of_job(SUBVOLUMES)),
        gpu=min(1, GPUS),
    params:
        box=lambda wildcards: SUBVOLUMES[wildcards.volume][wildcards.subvolume],
        model=subpath(input.model, parent=True),
        flags=lambda wildcards: flags(ORDERS[wildcards.order]),
        stage=staging,
        version=__version__,
    shell:
        "ffn segment --image {input.image}:raw --model {params.model:q} --box {params.box} {params.flags} "
        "{params.stage} --out {output.segmentation}:segmentation > {log} 2>&1"
