"""Run when the environment is made, with a layer list on standard input: compiles its network, so that runs need not."""

from slipway_historic_program.theano_flags import compile_ahead

if __name__ == "__main__":
    compile_ahead("slipway_theano.trainer", "TheanoTrainer")
