from __future__ import annotations

from pathlib import Path

from cluster.schedulers.slurm.answers import job_environ

BATCH = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_CPUS_PER_NODE": "8(x2)",
    "SLURM_RESTART_COUNT": "1",
    "SLURM_CONF": "/etc/x.conf",
    "SLURM_PROCID": "0",
    "PATH": "/bin",
}
STRIPPED = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": "/home/a", "HOME": "/home/a"}
WANTED = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_CPUS_PER_NODE": "8(x2)",
    "SLURM_RESTART_COUNT": "1",
    "SLURM_CONF": "/etc/x.conf",
    "SLURM_SUBMIT_DIR": "/home/a",
}


def process(proc: Path, pid: int, parent: int, environ: dict[str, str]) -> None:
    directory = proc / str(pid)
    directory.mkdir()
    (directory / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1 0 -1 4194304")
    (directory / "environ").write_bytes(b"".join(f"{key}={value}\0".encode() for key, value in environ.items()))


def test_outside_of_a_job_there_is_nothing(tmp_path: Path) -> None:
    assert job_environ({"PATH": "/bin", "SLURM_CONF": "/etc/x.conf", "SLURM_JOB_ID": ""}, tmp_path, 10) == {}


def test_a_batch_script_has_all_of_it(tmp_path: Path) -> None:
    found = job_environ(BATCH, tmp_path / "not-looked-at", 10)
    assert found == {key: value for key, value in BATCH.items() if key != "PATH"}


def test_what_the_jobstep_took_away_stands_in_an_ancestor(tmp_path: Path) -> None:
    process(tmp_path, 5, 1, BATCH)
    process(tmp_path, 8, 5, STRIPPED)
    process(tmp_path, 10, 8, STRIPPED)
    assert job_environ(STRIPPED, tmp_path, 10) == WANTED


def test_in_a_step_the_batch_script_is_no_ancestor_but_on_this_node(tmp_path: Path) -> None:
    step = {**STRIPPED, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_STEP_ID": "0"}
    process(tmp_path, 3, 1, {**BATCH, "SLURM_JOB_ID": "6", "SLURM_RESTART_COUNT": "9"})
    process(tmp_path, 5, 1, BATCH)
    process(tmp_path, 10, 1, step)
    assert job_environ(step, tmp_path, 10) == {**WANTED, "SLURM_STEP_ID": "0"}


def test_an_ancestor_of_another_job_is_not_believed(tmp_path: Path) -> None:
    process(tmp_path, 5, 1, {**BATCH, "SLURM_JOB_ID": "6"})
    process(tmp_path, 10, 5, STRIPPED)
    assert job_environ(STRIPPED, tmp_path, 10) == {key: value for key, value in STRIPPED.items() if key != "HOME"}


def test_a_process_that_goes_away_is_passed_over(tmp_path: Path) -> None:
    process(tmp_path, 10, 5, STRIPPED)
    (tmp_path / "77").mkdir()
    assert job_environ(STRIPPED, tmp_path, 10)["SLURM_JOB_ID"] == "7"
