"""Cobalt's command lines, and what they print."""

from ffn.machine.schedulers import cobalt


def test_the_submit_command_has_what_training_needs(training):
    assert cobalt.submit_command(training, "a.sh", "a.log") == (
        "qsub -n 3 -t 90 --mode script --jobname ffn-train -o a.log -e a.log -q prod -A brains a.sh"
    ).split(" ")


def test_the_id_is_found_after_remarks():
    assert cobalt.job_id('Job routed to queue "x".\nMemory mode set\n4711\n') == "4711"
    assert cobalt.job_id("no\n") is None


def test_the_queue_is_read_and_a_failure_is_no_answer(done):
    table = "JobID  State   \n===============\n12     running \n13     user_hold\n"
    assert cobalt.queued(done(table)) == {"12", "13"}
    assert cobalt.queued(done(code=1)) == set()
    assert cobalt.queued(done(stderr="cannot connect", code=1)) is None


def test_a_job_of_one_process_starts_on_a_compute_node(training):
    assert cobalt.on_node(training) == "aprun -n 1 -N 1 -d 8 -j 1 -cc none"
