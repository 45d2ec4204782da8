"""The queues of a site and their limits, as a profile lists them in the resource `queues`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from ffn.errors import ClusterError
from ffn.machine.schedulers import BatchJob

ROW = re.compile(r"(\S+) +(\d+)-(\d+) +(\d+)-(\d+)")


class Queue(NamedTuple):
    """A queue takes jobs of so many nodes for so many minutes, each from least to most."""

    name: str
    least_nodes: int
    most_nodes: int
    least_minutes: int
    most_minutes: int


def read_queues(text: str) -> list[Queue]:
    """Return the queues of a profile, rows of name, nodes and minutes, in order of preference.

    Examples
    --------
    >>> read_queues("debug 1-8 5-60, prod 10-24 5-180")[1]
    Queue(name='prod', least_nodes=10, most_nodes=24, least_minutes=5, most_minutes=180)
    """
    rows = [row.strip() for row in text.split(",") if row.strip()]
    found = [(row, ROW.fullmatch(row)) for row in rows]
    if wrong := [row for row, match in found if match is None]:
        raise ClusterError(f"queues: found {wrong[0]!r}, expected a name, nodes and minutes, such as 'debug 1-8 5-60'")
    return [Queue(match[1], *map(int, match.groups()[1:])) for _, match in found if match]


def in_queue(job: BatchJob) -> BatchJob:
    """Return a job with the queue that takes it, and with a walltime that this queue allows.

    Of the queues that take so many nodes, that is the first one that takes the whole walltime, else the one with the
    longest. If the profile or FFN_QUEUE names a queue (resource `queue`) that takes so many nodes, it is that one.
    """
    queues = read_queues(str(job.site.get("queues") or ""))
    wanted = job.site.get("queue")
    if not queues or (wanted and wanted not in {queue.name for queue in queues}):
        return job
    fitting = [queue for queue in queues if queue.least_nodes <= job.nodes <= queue.most_nodes]
    if not fitting:
        taken = job.site["queues"]
        raise ClusterError(f"{job.name}: has {job.nodes} nodes, expected a number that a queue takes: {taken}")
    fitting = [queue for queue in fitting if queue.name == wanted] or fitting
    long_enough = [queue for queue in fitting if queue.most_minutes >= job.minutes]
    chosen = long_enough[0] if long_enough else max(fitting, key=lambda queue: queue.most_minutes)
    minutes = min(max(job.minutes, chosen.least_minutes), chosen.most_minutes)
    return replace(job, minutes=minutes, site={**job.site, "queue": chosen.name})
