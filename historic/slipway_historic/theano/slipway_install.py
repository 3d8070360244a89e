"""Run when the environment is made, with a layer list on standard input: compiles its network, so that runs need not."""

from typing import Any

from slipway_historic_program.theano_flags import compile_ahead


def load() -> Any:
    """Import here, and not above: Theano reads its flags when it is imported."""
    from slipway_theano.trainer import TheanoTrainer  # type: ignore[import-not-found]

    return TheanoTrainer


if __name__ == "__main__":
    compile_ahead(load)
