"""docs/explanation/what-happens-when.md says what the code says: its times, messages, statuses and exit codes, with a test for each row."""

import errno
import functools
import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pytest

from tests.docs.test_docs import CODE, ROOT, named_rows, rows
from tests.syntax import syntax
from tests.test_packages import ROOMS
from workflow.run.record.outcome import TABLE

PAGE = "docs/explanation/what-happens-when.md"
UNITS = {"s": 1.0, "minutes": 60.0, "%": 0.01, "median steps": 1.0}
TIME = re.compile(rf"\d+ (?:{'|'.join(UNITS)})(?!\w)")
PUT_IN = re.compile(
    r"\.\.\.|\b(?:n|local-)\d\b|\b\d[\dms.]*(?: s\b)?|\bRUN\b|\bSIG[A-Z]+|\bdocker\b|\btrain\b|: |\((?=state)|(?<=state )\w"
)
"""Numbers and times, names of nodes, runs, signals, engines and phases."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What stands behind a row of the page: a time as it is written -> the constants that it is, and the tests that show the row."""

    tests: tuple[str, ...]
    times: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


CASES: Final[Mapping[str, Case]] = {
    "A rank dies": Case(
        times={"10 s": ("workflow.run.supervisor.step_limits.CAUSE_SEARCH_S",), "5 s": ("workflow.run.node.limits.RANKS_TERM_S",)},
        tests=(
            "tests/workflow/run/test_runs.py::test_a_program_that_fails_is_a_row",
            "tests/workflow/run/test_launcher_faults.py::test_a_fault_is_named_in_time_and_leaves_nothing",
            "tests/workflow/run/record/test_outcome.py::test_the_rank_that_failed_first",
            "tests/workflow/run/test_runs.py::test_a_killed_rank_is_named_among_the_echoes_and_the_attempt_prevented",
            "tests/workflow/run/link/test_event_loop.py::test_an_echo_waits_for_its_cause",
        ),
    ),
    "A sidecar dies": Case(
        tests=(
            "tests/workflow/run/test_sidecars.py::test_one_that_ends_while_ranks_run_is_the_run_s_failure",
            "tests/workflow/run/test_sidecars.py::test_one_that_is_killed_on_another_node_is_named",
            "tests/workflow/run/test_mpirun.py::test_a_part_of_mpi_that_is_killed_is_named",
        )
    ),
    "A rank hangs": Case(
        times={
            "60 s": ("workflow.run.supervisor.step_limits.RANK_SILENCE_S",),
            "20 median steps": ("workflow.run.node.ranks.STEPS_IN_LIMIT",),
        },
        tests=(
            "tests/workflow/run/test_launcher_faults.py::test_a_fault_is_named_in_time_and_leaves_nothing",
            "tests/workflow/run/test_runs.py::test_a_rank_that_never_speaks_hangs_by_the_init_limit",
            "tests/workflow/run/test_resume.py::test_a_frozen_rank_at_the_deadline_is_no_hang",
        ),
    ),
    "A node is lost": Case(
        times={"30 s": ("workflow.run.supervisor.step_limits.NODE_SILENCE_S",), "60 s": ("workflow.run.node.limits.SUPERVISOR_SILENCE_S",)},
        tests=(
            "tests/workflow/run/test_kills.py::test_a_frozen_node_program_is_lost_by_its_silence",
            "tests/workflow/run/link/test_event_loop.py::test_echoes_alone_mean_that_a_node_which_does_not_answer_is_lost_or_are_an_error_in_the_end",
            "tests/workflow/run/test_runs.py::test_a_node_that_is_lost_while_it_pushes_ends_the_run_without_it",
            "tests/workflow/run/node/test_workdir.py::test_what_a_killed_node_program_left_goes_with_the_next_start_of_any_run",
            "tests/slurm/test_scheduler.py::test_a_run_whose_job_holds_the_node_that_it_lost_before_trains_in_its_second_attempt",
        ),
    ),
    "The network between nodes breaks": Case(
        times={
            "4 s": ("workflow.run.supervisor.preflight.REACH_S",),
            "8 s": ("data_prep.staging.exchange.PEER_HANG_S",),
            "10 s": ("workflow.run.supervisor.step_limits.CAUSE_SEARCH_S",),
        },
        tests=(
            "tests/slurm/test_preflight.py::test_a_pair_that_is_cut_is_named_and_ends_the_run",
            "tests/slurm/test_preflight.py::test_a_node_with_a_slow_link_is_named_and_the_run_goes_on",
            "tests/data_prep/staging/test_peers.py::test_a_node_that_cannot_be_reached_is_done_without",
            "tests/workflow/run/link/test_event_loop.py::test_echoes_alone_mean_that_a_node_which_does_not_answer_is_lost_or_are_an_error_in_the_end",
        ),
    ),
    "The walltime ends": Case(
        times={
            "120 s": ("workflow.study.site.DEADLINE_MARGIN_S",),
            "20 %": ("workflow.run.record.walltime_budget.MARGIN_SHARE",),
            "50 %": ("workflow.run.record.walltime_budget.SAVE_SHARE",),
        },
        tests=(
            "tests/workflow/run/test_resume.py::test_the_walltime_ends_a_run_as_a_row_with_what_is_there_and_a_longer_one_goes_on",
            "tests/workflow/run/test_runs.py::test_cancelled_or_at_its_job_s_end_while_it_waits_for_its_turn_it_leaves_nothing",
            "tests/slurm/test_deadline.py::test_a_run_longer_than_its_job_is_saved_requeued_and_goes_on",
        ),
    ),
    "The job is cancelled, preempted or requeued": Case(
        times={
            "4 s": ("workflow.run.supervisor.step_limits.JOB_END_CAUSE_S",),
            "12 s": ("workflow.run.supervisor.step_limits.NODES_STOP_S",),
            "10 s": ("workflow.run.link.protocol.CANCELLED_PUSH_S",),
        },
        tests=(
            "tests/workflow/run/test_runs.py::test_a_signal_cancels_and_what_is_there_is_pushed",
            "tests/workflow/run/test_runs.py::test_cancelled_or_at_its_job_s_end_while_it_waits_for_its_turn_it_leaves_nothing",
            "tests/slurm/test_scheduler.py::test_scancel_ends_a_run_with_a_record_and_nothing_stays",
            "tests/slurm/test_deadline.py::test_a_job_that_is_put_back_into_the_queue_takes_the_run_over_from_its_own_earlier_start",
            "tests/workflow/test_run_command.py::test_ctrl_c_ends_the_runs_and_says_how_to_go_on",
        ),
    ),
    "Network storage hangs": Case(
        times={
            "10 s": ("cluster.limits.STORAGE_WAIT_SHOWN_S",),
            "120 s": ("cluster.limits.STORAGE_WAIT_S", "workflow.run.supervisor.step_limits.STORAGE_CALL_S"),
            "300 s": ("workflow.run.supervisor.step_limits.STAGING_STALL_S",),
        },
        tests=(
            "tests/workflow/run/link/test_event_loop.py::test_a_call_that_hangs_is_abandoned_and_says_so",
            "tests/workflow/run/supervisor/test_staging.py::test_nodes_that_say_the_same_forever_have_stopped",
            "tests/workflow/run/supervisor/test_staging.py::test_a_load_that_waits_for_a_copy_which_stands_still_is_no_progress",
            "tests/workflow/run/test_runs.py::test_storage_that_comes_back_gets_its_result",
            "tests/workflow/run/test_runs.py::test_a_result_that_storage_does_not_take_stays_on_the_node_and_can_be_delivered",
            "tests/base/test_calls.py::test_a_hang_ends_at_the_limit",
            "tests/cluster/test_storage_guard.py::test_a_wait_for_storage_is_told_and_given_up",
            "tests/cluster/test_storage_guard.py::test_ctrl_c_ends_a_command_that_waits_for_storage",
            "tests/workflow/test_run_command.py::test_storage_that_is_frozen_at_its_start_is_an_error_within_the_limit",
            "tests/workflow/run/test_frozen_storage.py::test_frozen_at_the_push_the_result_waits_on_its_node_and_can_be_delivered",
            "tests/data_prep/staging/test_peers.py::test_a_node_whose_storage_hangs_gets_all_from_the_others",
        ),
    ),
    "Network storage is full": Case(
        tests=(
            "tests/workflow/run/storage/test_lease.py::test_full_storage_is_told_by_its_path_and_holds_nobody_up_once_there_is_room",
            "tests/workflow/run/test_runs.py::test_storage_that_takes_nothing_is_told_as_such",
            "tests/data_prep/push/test_faults.py::test_full_storage_keeps_the_result_on_the_node",
            "tests/data_prep/build/test_faults.py::test_a_full_disk_says_need_and_free",
        )
    ),
    "The files of a dataset change": Case(
        tests=(
            "tests/data_prep/tree/test_plan.py::test_a_tree_that_changes_while_it_is_hashed_is_told",
            "tests/data_prep/tree/test_plan.py::test_a_tree_that_changes_after_it_was_hashed_is_noticed",
            "tests/data_prep/staging/test_tree.py::test_a_tree_that_changed_after_it_was_hashed_is_told_with_the_file",
            "tests/workflow/run/test_programs.py::test_a_tree_that_changed_after_it_was_hashed_ends_the_run_with_the_file",
        )
    ),
    "The disk of a node is full": Case(
        tests=(
            "tests/data_prep/staging/test_faults.py::test_a_full_disk_is_refused_first_and_evicted_for",
            "tests/workflow/run/test_runs.py::test_a_result_that_neither_storage_nor_a_full_cache_takes_is_lost_in_words",
            "tests/workflow/run/test_runs.py::test_a_cache_without_inodes_is_told_as_such_and_nothing_is_left",
            "tests/workflow/run/test_runs.py::test_a_cleaner_that_removes_the_cache_is_told_in_words",
        )
    ),
    "A file on a node cannot be removed": Case(
        tests=(
            "tests/workflow/run/node/test_workdir.py::test_what_cannot_be_removed_stops_no_later_run_and_is_removed_once_it_can_be",
            "tests/workflow/run/node/test_workdir.py::test_a_delivered_result_that_cannot_be_removed_is_delivered_and_swept_later",
            "tests/data_prep/cache/test_cache.py::test_an_entry_that_cannot_be_removed_keeps_no_other_from_eviction",
            "tests/workflow/commands/test_reap.py::test_what_cannot_be_removed_is_named_and_all_else_goes",
        )
    ),
    "The docker daemon restarts or hangs": Case(
        times={
            "10 s": ("containers.engines.container_start.ENGINE_CALL_S",),
            "60 s": ("containers.spec.CONTAINER_START_S",),
            "45 s": ("containers.engines.container_start.CONTAINER_REMOVE_S",),
        },
        tests=(
            "tests/containers/test_runs.py::test_a_daemon_that_is_killed_and_comes_back_is_named",
            "tests/containers/test_runs.py::test_a_daemon_that_hangs_is_named_within_its_limit",
            "tests/slurm/test_images.py::test_a_hung_dockerd_is_named_and_no_wait_is_for_ever",
        ),
    ),
    "Somebody kills a process with -9": Case(
        tests=(
            "tests/workflow/run/test_kills.py::test_a_kill_at_any_moment_leaves_nothing_and_the_next_start_finishes",
            "tests/workflow/run/test_kills.py::test_a_killed_supervisor_takes_everything_with_it",
            "tests/workflow/run/test_kills.py::test_a_killed_node_program_ends_the_run_and_is_named",
            "tests/workflow/run/test_runs.py::test_a_killed_rank_is_named_among_the_echoes_and_the_attempt_prevented",
            "tests/workflow/run/test_kills.py::test_processes_that_a_double_kill_left_are_ended_by_the_next_start",
            "tests/containers/test_container.py::test_a_container_that_is_killed_from_outside_ends_all_its_ranks",
            "tests/containers/test_runs.py::test_a_client_that_is_killed_is_named",
            "tests/containers/test_runs.py::test_whoever_is_killed_nothing_is_left",
            "tests/data_prep/staging/test_faults.py::test_killed_at_any_moment_it_goes_on",
            "tests/workflow/run/test_runs.py::test_a_supervisor_whose_parent_ends_cancels",
            "tests/workflow/test_run_command.py::test_killed_it_leaves_nothing_running",
            "tests/workflow/test_kills.py::test_the_same_command_finishes_after_a_kill",
        )
    ),
    "The image registry is away": Case(
        tests=(
            "tests/workflow/commands/test_submit.py::test_images_are_pinned_before_anything_is_queued",
            "tests/slurm/test_images.py::test_every_node_starts_what_the_login_node_pinned",
            "tests/workflow/run/test_images.py::test_an_archive_that_is_gone_is_named_and_no_other_image_is_taken",
        )
    ),
    "Two people start the same study": Case(
        tests=(
            "tests/workflow/run/test_runs.py::test_a_second_supervisor_of_a_living_run_waits_for_its_result",
            "tests/workflow/run/supervisor/test_supervisor.py::test_a_log_that_another_snakemake_has_removed_comes_back",
            "tests/workflow/run/test_runs.py::test_who_lost_the_lease_publishes_nothing",
            "tests/workflow/run/storage/test_results.py::test_of_two_that_ask_for_the_same_one_gets_it",
            "tests/workflow/test_double_starts.py::test_of_two_supervisors_at_once_one_trains",
            "tests/workflow/test_double_starts.py::test_of_two_commands_at_once_both_end_with_all_results_and_the_report",
            "tests/workflow/test_double_starts.py::test_of_two_snakemakes_at_once_each_run_is_trained_by_one",
            "tests/slurm/test_queue.py::test_of_two_commands_each_run_is_made_once",
            "tests/slurm/test_queue.py::test_of_a_submission_and_a_run_command_side_by_side_each_run_is_made_once",
            "tests/workflow/commands/test_submit.py::test_a_job_beside_others_of_the_same_study_is_refused",
        )
    ),
    "The machine is rebooted": Case(
        tests=(
            "tests/cluster/test_local.py::test_whether_a_holder_lives",
            "tests/data_prep/cache/test_cache.py::test_a_process_is_known_by_pid_start_and_boot",
            "tests/data_prep/staging/test_faults.py::test_a_power_cut_at_any_moment_leaves_nothing_wrong",
            "tests/data_prep/push/test_faults.py::test_a_power_cut_loses_nothing_that_was_acknowledged",
            "tests/workflow/run/storage/test_lease.py::test_a_dead_holder_is_followed_and_fenced",
        )
    ),
}
HEADS, *LINES = [row for row in rows(PAGE) if len(row) == 5]
ROWS = {row[0]: row for row in LINES}
EACH_ROW = pytest.mark.parametrize("name", ROWS)


def test_every_case_has_its_row() -> None:
    assert ROWS.keys() == CASES.keys()


@EACH_ROW
def test_every_test_that_shows_it_exists(name: str) -> None:
    for word in CASES[name].tests:
        file, _, function = word.partition("::")
        assert re.search(rf"^def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), word


@EACH_ROW
def test_every_time_is_that_of_its_constant(name: str) -> None:
    known = CASES[name].times
    assert set(TIME.findall(CODE.sub("", " ".join(ROWS[name])))) == known.keys()
    for text, constants in known.items():
        number, _, unit = text.partition(" ")
        for constant in constants:
            module, _, key = constant.rpartition(".")
            assert float(number) * UNITS[unit] == pytest.approx(getattr(importlib.import_module(module), key)), constant


@functools.cache
def product() -> str:
    """Return all strings of the product, a line each, and of an f-string each of its parts."""
    modules = (syntax(path) for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    texts = (text for module in modules for text in (*module.texts, *module.docs))
    return "\n".join([os.strerror(errno.ENOSPC), *(re.sub(r"%[sd]", "\0", text) for text in texts)])


def pieces(words: list[str]) -> int:
    """Return how few pieces these words are that each are in a string of the product; one for each word that is in none."""
    if not words:
        return 0
    longest = next((end for end in range(len(words), 0, -1) if " ".join(words[:end]) in product()), 1)
    alone = longest == 1 and len(words) > 1
    return 1 + alone + pieces(words[longest:])


@EACH_ROW
def test_every_message_that_is_quoted_is_one_of_the_product(name: str) -> None:
    """Between what is put in, which are numbers, names and `...`, a quoted sentence has the words of at most two strings."""
    for quoted in CODE.findall(ROWS[name][HEADS.index("you see")]):
        for fragment in PUT_IN.split(quoted):
            words = fragment.strip(" ,;.:()").split()
            assert quoted.startswith(("slipway ", "logs/")) or pieces(words) <= 2, f"{quoted}: {fragment!r} is in no string"


@EACH_ROW
def test_every_status_has_the_exit_code_that_is_said(name: str) -> None:
    ends = named_rows("docs/reference/errors.md")
    for status, code in re.findall(r"status `(\w+)`, exit (\d+)", " ".join(ROWS[name])):
        assert status in TABLE
        assert code in re.findall(r"\d+", ends[status][2]), f"{status}: exit {code}"
