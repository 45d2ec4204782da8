"""What a training says of itself: metrics, pictures, timings."""
