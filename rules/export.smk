# Neuroglancer precomputed volumes, meshes, skeletons and states; with what the run knows about the segments.


rule export:
    input:
        image=f"{VOLUME}/raw.h5",
        segmentation=FINAL,
        truth=lambda wildcards: [f"{OUT}/volumes/{wildcards.volume}/labels.h5"]
        * (wildcards.volume in SHOWN_TRUTH),
        errors=lambda wildcards: [f"{OUT}/evaluation/{wildcards.volume}.json"]
        * (wildcards.volume in EVALUATED),
        membrane=lambda wildcards: [f"{OUT}/membrane/{wildcards.volume}.h5"]
        * (wildcards.volume in TRAINED),
        coordinates=lambda wildcards: [f"{OUT}/coordinates/{wildcards.volume}.h5"]
        * (wildcards.volume in TRAINED),
        subvolumes=lambda wildcards: expand(
            f"{OUT}/segmentation/{{volume}}/subvolumes/{{subvolume}}.h5",
            volume=wildcards.volume,
            subvolume=SUBVOLUMES[wildcards.volume],
        ),
        mapping=lambda wildcards: [
            f"{OUT}/agglomeration/{wildcards.volume}/mapping.csv"
        ]
        * (wildcards.volume in AGGLOMERATED),
        base=lambda wildcards: expand(BASE, volume=wildcards.volume)
        * (wildcards.volume in AGGLOMERATED),
    output:
        state=ensure(f"{OUT}/precomputed/{{volume}}/neuroglancer.json", non_empty=True),
    log:
        f"{OUT}/logs/export/{{volume}}.log",
    benchmark:
        f"{OUT}/benchmarks/export.{{volume}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: CORES
    resources:
        mem_mb=memory("export"),
        runtime=duration("export", voxels_in("segment_box")),
    params:
        truth=lambda wildcards, input: option("--truth", input.truth, ":labels"),
        errors=lambda wildcards, input: option("--errors", input.errors),
        edges=lambda wildcards, input: option("--edges", input.membrane, ":edges"),
        coordinates=lambda wildcards, input: option("--coordinates", input.coordinates),
        probability=lambda wildcards, input: option(
            "--probability", input.subvolumes, ":probability"
        ),
        agglomeration=lambda wildcards, input: option("--agglomeration", input.mapping),
        supervoxels=lambda wildcards, input: option(
            "--supervoxels", input.base, ":segmentation"
        ),
        box=lambda wildcards: PLACES[wildcards.volume].segment_box,
        folder=subpath(output.state, parent=True),
        flags=flags(RUN.export),
        version=__version__,
    shell:
        "ffn export --image {input.image}:raw --segmentation {input.segmentation}:segmentation {params.truth} "
        "{params.errors} {params.edges} {params.coordinates} --origins {input.subvolumes} {params.probability} "
        "{params.agglomeration} {params.supervoxels} "
        "--box {params.box} {params.flags} --out {params.folder} > {log} 2>&1"
