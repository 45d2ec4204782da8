"""Training on several processes with the results of one."""
