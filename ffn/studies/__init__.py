"""Studies of distributed training: how it scales, which learning rate it needs, what it costs to reach a score."""
