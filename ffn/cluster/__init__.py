"""What runs around the stages on a cluster: launching ranks, checking a site."""
