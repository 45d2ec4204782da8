# On a cluster: a failed group repeats only what is not done, and Ctrl-C cancels every job. Everywhere: any number of
# SIGTERMs ends Snakemake after what runs.
import _thread
import itertools
import os

from snakemake.jobs import GroupJob
from snakemake.scheduling.job_scheduler import JobScheduler
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

# When the products of grouped jobs were written that were there before their jobs were first submitted.
FOUND = {}


def written(path):
    """When a file was written, None where there is none."""
    return os.stat(path).st_mtime_ns if os.path.exists(path) else None


def products(job):
    """What Snakemake expects of a job: a node may die between its output and its benchmark."""
    return [*job.output, *([job.benchmark] if job.benchmark else [])]


def unfinished(group):
    """Members of a group that are still to be done; Snakemake would repeat all of them."""
    for job in group.jobs:
        for path in products(job):
            FOUND.setdefault(path, written(path))
    left = [
        job
        for job in group.jobs
        if any(written(path) in (None, FOUND[path]) for path in products(job))
    ]
    return [spec for job in left or group.jobs for spec in job.get_target_spec()]


GroupJob.get_target_spec = unfinished


class ActiveJobs(list):
    """Submitted jobs, also while their state is asked for: Snakemake takes them out of its list then, and a Ctrl-C in
    that moment would cancel none of them.
    """

    asked = ()

    def clear(self):
        self.asked = tuple(self)
        super().clear()

    def extend(self, jobs):
        super().extend(jobs)
        self.asked = ()

    def __iter__(self):
        return itertools.chain(super().__iter__(), self.asked)


def registered(
    executor, *arguments, register=RemoteExecutor.report_job_submission, **options
):
    """Note a submitted job."""
    with executor.lock:
        if not isinstance(executor.active_jobs, ActiveJobs):
            executor.active_jobs = ActiveJobs(executor.active_jobs)
    register(executor, *arguments, **options)


RemoteExecutor.report_job_submission = registered


def told_to_end(scheduler, *signal, note=JobScheduler.exit_gracefully):
    """Note a SIGTERM in a thread of its own. Snakemake's handler would wait for ever for a lock where the thread that it
    interrupts holds it, and a second signal, as schedulers send one to each process and the job's shell hands on its own,
    finds it held by the first. (`threading` takes locks, too.)
    """
    _thread.start_new_thread(note, (scheduler,))


JobScheduler.exit_gracefully = told_to_end
