"""Training on several processes as if on one."""
