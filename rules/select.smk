# The best of the last checkpoints: each segments the validation box and is scored there; `segment` uses the best.
CHECKPOINT = f"{OUT}/selection/step-{{step}}"
VALIDATION = f"{OUT}/volumes/{RUN.select_volume}"
VALIDATION_VOXELS = Box.parse(RUN.select.box).num_voxels if STEPS else 0


rule checkpoint_model:
    input:
        trained=f"{OUT}/model/model.yaml",
    output:
        model=ensure(f"{CHECKPOINT}/model.yaml", non_empty=True),
        weights=ensure(f"{CHECKPOINT}/weights.h5", non_empty=True),
    log:
        f"{OUT}/logs/select/{{step}}-model.log",
    benchmark:
        f"{OUT}/benchmarks/checkpoint_model.{{step}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("import"),
        runtime=by_attempt(10),
    params:
        checkpoint=f"{OUT}/model/checkpoints/step-{{step}}",
        folder=subpath(output.model, parent=True),
        version=__version__,
    shell:
        "ffn import-checkpoint {params.checkpoint} --out {params.folder} > {log} 2>&1"


rule checkpoint_segment:
    input:
        image=f"{VALIDATION}/raw.h5",
        model=f"{CHECKPOINT}/model.yaml",
    output:
        segmentation=ensure(f"{CHECKPOINT}/segmentation.h5", non_empty=True),
    log:
        f"{OUT}/logs/select/{{step}}-segment.log",
    benchmark:
        f"{OUT}/benchmarks/checkpoint_segment.{{step}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: max(1, CORES // max(1, len(RUN.selectable_steps)))
    resources:
        mem_mb=memory("segment", VALIDATION_VOXELS),
        runtime=flooding(VALIDATION_VOXELS),
        gpu=min(1, GPUS),
    params:
        box=RUN.select.box,
        model=subpath(input.model, parent=True),
        flags=flags(RUN.segment),
        version=__version__,
    shell:
        "ffn segment --image {input.image}:raw --model {params.model} --box {params.box} {params.flags} "
        "--out {output.segmentation}:segmentation > {log} 2>&1"


rule checkpoint_evaluate:
    input:
        segmentation=f"{CHECKPOINT}/segmentation.h5",
        truth=f"{VALIDATION}/labels.h5",
    output:
        scores=ensure(f"{CHECKPOINT}/scores.json", non_empty=True),
    log:
        f"{OUT}/logs/select/{{step}}-evaluate.log",
    benchmark:
        f"{OUT}/benchmarks/checkpoint_evaluate.{{step}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("evaluate", block(RUN.evaluate)),
        runtime=duration("evaluate", VALIDATION_VOXELS),
    params:
        box=RUN.select.box,
        flags=flags(RUN.evaluate),
        version=__version__,
    shell:
        "ffn evaluate --segmentation {input.segmentation}:segmentation --truth {input.truth}:labels "
        "--box {params.box} {params.flags} --out {output.scores} > {log} 2>&1"


rule select:
    input:
        models=expand(f"{CHECKPOINT}/model.yaml", step=STEPS),
        scores=expand(f"{CHECKPOINT}/scores.json", step=STEPS),
    output:
        model=ensure(f"{OUT}/selected/model.yaml", non_empty=True),
        weights=ensure(f"{OUT}/selected/weights.h5", non_empty=True),
        selection=ensure(f"{OUT}/selected/selection.json", non_empty=True),
    log:
        f"{OUT}/logs/select.log",
    benchmark:
        f"{OUT}/benchmarks/select.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("select"),
        runtime=by_attempt(10),
    params:
        candidates=[
            f"--candidate {step}={folder},{folder}/scores.json"
            for step, folder in zip(STEPS, expand(CHECKPOINT, step=STEPS))
        ],
        folder=subpath(output.model, parent=True),
        flags=flags(RUN.select, skip=("checkpoints", "volume", "box")),
        version=__version__,
    shell:
        "ffn select {params.candidates} {params.flags} --out {params.folder} > {log} 2>&1"
