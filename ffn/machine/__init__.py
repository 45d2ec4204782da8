"""The resources of a machine that a process uses: CPU, GPU, threads, locks, child processes."""
