# The model folder that training starts from, made from one of our checkpoints or a published one.


rule import_checkpoint:
    input:
        checkpoint=arguments.inputs(*PIPELINE.imported_files, *reference_files(RUN.normalize)),
    output:
        model=ensure(PATHS.of("import-checkpoint"), non_empty=True),
        weights=ensure(PATHS.of("import-checkpoint", "weights"), non_empty=True),
    log:
        PATHS.log("import_checkpoint"),
    benchmark:
        PATHS.benchmark("import_checkpoint")
    threads: 1
    resources:
        mem_mb=memory("import-checkpoint"),
        runtime=by_attempt(10),
    params:
        checkpoint=quote(RUN.init or ""),
        stamps=arguments.stamps(*PIPELINE.imported_files, *reference_files(RUN.normalize)),
        folder=subpath(output.model, parent=True),
        flags=flags(RUN.model, skip=("depth", "features")),
        reference=flags(RUN.normalize),
    shell:
        "ffn import-checkpoint {params.checkpoint} {params.flags} {params.reference} --out {params.folder} > {log} 2>&1"
