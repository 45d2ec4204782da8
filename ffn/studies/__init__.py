"""Studies of distributed training: its scaling, its learning rates, and the cost of reaching a score."""
