"""What a process takes of the machine it runs on: cores, GPU, locks, other processes."""
