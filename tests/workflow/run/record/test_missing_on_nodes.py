"""What nodes lack of a program: where none has it, that is a result; where some have it, the others are at fault."""

from workflow.run.record.outcome import judge_missing

LACKS = "/opt/python, the `python` of the program 'gpt', is not there: it must be on all nodes"


def test_on_every_node() -> None:
    ending = judge_missing({"n1": LACKS, "n2": LACKS}, 2)
    assert (ending.status, ending.kind, ending.reason) == ("error", "result", f"{LACKS} (on all nodes)")
    assert judge_missing({"n1": LACKS}, 1).reason == f"{LACKS} (on n1)"


def test_on_some_of_them() -> None:
    ending = judge_missing({"n2": LACKS}, 3)
    assert (ending.kind, ending.exit_code) == ("prevented", 24)
    assert ending.reason == f"{LACKS} (on n2; other nodes of the run have it)"
