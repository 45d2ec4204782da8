"""What a process uses of its machine: CPU, GPU, threads, locks, child processes."""
