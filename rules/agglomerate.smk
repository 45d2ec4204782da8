# Optional: contacts of the base segmentation scored by growing both sides anew, one job for each part of the volume.


rule agglomerate:
    input:
        segmentation=BASE,
        image=f"{VOLUME}/raw.h5",
        model=f"{USED_MODEL}/model.yaml",
    output:
        graph=ensure(
            f"{OUT}/agglomeration/{{volume}}/graphs/{{subvolume}}.csv", non_empty=True
        ),
    log:
        f"{OUT}/logs/agglomerate/{{volume}}/{{subvolume}}.log",
    benchmark:
        f"{OUT}/benchmarks/agglomerate.{{volume}}.{{subvolume}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: AGGLOMERATE_THREADS
    resources:
        mem_mb=memory("agglomerate", block(RUN.agglomerate)),
        runtime=flooding(voxels_of_job(CONTACT_BOXES)),
        gpu=min(1, GPUS),
    params:
        box=lambda wildcards: CONTACT_BOXES[wildcards.volume][wildcards.subvolume],
        model=subpath(input.model, parent=True),
        flags=flags(RUN.agglomerate, skip=("enabled", "job_size_zyx")),
        version=__version__,
    shell:
        "ffn agglomerate --segmentation {input.segmentation}:segmentation --image {input.image}:raw "
        "--model {params.model:q} --box {params.box} {params.flags} --out {output.graph} > {log} 2>&1"
