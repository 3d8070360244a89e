"""What is said of several nodes alike is said once."""

from workflow.run.record.machine_load import together


def test_alike_words_of_nodes_are_one_sentence() -> None:
    words = "others used 0.5 of 2 cores while it measured"
    assert together([f"local-0: {words}", f"local-1: {words}", "local-1: heat"]) == [f"local-0, local-1: {words}", "local-1: heat"]
    assert together(["one sentence"]) == ["one sentence"]
    assert together([]) == []
