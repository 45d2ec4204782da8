# Flood filling, one job per overlapping subvolume. For the consensus, once more with reversed seeds.


rule segment:
    input:
        image=IMAGE,
        model=f"{PIPELINE.used_model}/model.yaml",
        files=segment_files(RUN.segment),
    output:
        segmentation=ensure(
            PATHS.of("segment"),
            non_empty=True,
        ),
    log:
        PATHS.log("segment{order}", "{volume}", "{subvolume}"),
    benchmark:
        PATHS.benchmark("segment{order}", "{volume}", "{subvolume}")
    threads: SEGMENT_THREADS
    resources:
        mem_mb=flooding_memory(RUN.model, RUN.segment, PIPELINE.voxels_of_job("subvolumes")),
        runtime=flooding(RUN.model, PIPELINE.voxels_of_job("subvolumes")),
        gpu=min(1, GPUS),
    params:
        launcher=arguments.launcher,
        box=PIPELINE.box_of_job("subvolumes"),
        model=subpath(input.model, parent=True),
        flags=lambda wildcards: flags(PIPELINE.orders[wildcards.order]),
        untracked=arguments.untracked(RUN.segment),
        stage=arguments.staging,
        machine=PATHS.machine,
    shell:
        "{params.launcher} ffn segment --image {input.image}:raw --model {params.model:q} --box {params.box} {params.flags} "
        "{params.untracked} {params.stage} --machine {params.machine:q} --out {output.segmentation}:segmentation > {log} 2>&1"
