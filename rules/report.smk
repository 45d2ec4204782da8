# One page with everything a person wants to know about the run.


rule report:
    input:
        model=f"{MODEL}/model.yaml",
        scores=STAGES["evaluate"],
        sweeps=STAGES["sweep"],
        exports=STAGES["export"],
    output:
        report=report(f"{OUT}/report.html", caption="../docs/report-caption.rst"),
    log:
        f"{OUT}/logs/report.log",
    benchmark:
        f"{OUT}/benchmarks/report.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("report"),
        runtime=by_attempt(30),
    params:
        run=subpath(output.report, parent=True),
        version=__version__,
    shell:
        "ffn report {params.run} --out {output.report} > {log} 2>&1"
