"""Running the stages on a cluster: batch jobs, starting ranks, checking a site."""
