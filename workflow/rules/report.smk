# One HTML page about the run.


rule report:
    input:
        model=TRAINED,
        scores=PIPELINE.targets("evaluate"),
        sweeps=PIPELINE.targets("sweep"),
        exports=PIPELINE.targets("export"),
    output:
        report=report(PATHS.of("report"), caption="report-caption.rst"),
    log:
        PATHS.log("report"),
    benchmark:
        PATHS.benchmark("report")
    threads: 1
    resources:
        mem_mb=memory("report"),
        runtime=by_attempt(30),
    params:
        run=subpath(output.report, parent=True),
    shell:
        "ffn report {params.run} --out {output.report} > {log} 2>&1"
