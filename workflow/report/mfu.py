"""Model FLOP utilisation of a run: the FLOP that its model needs at the measured rate, over what its GPUs can do at most.

Model FLOP are those of forward and backward for one sample or token, without what is computed again: appendix B of PaLM (Chowdhery et al.,
2022). A network of ours has its multiply-adds from its layer list, of an image or of a token, twice as many FLOP, and a backward pass of
twice the forward, but for the gradient of what the first layer reads, which no framework computes (records of earlier versions count it).
A token in a longer sequence attends to more: what was in buckets has the mean over the tokens that were trained.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from cluster.gpus.peak import Peak, peak
from containers.models import of_tokens

FLOP_PER_MAC: Final = 2
PASSES: Final = 3
"""Training costs three forward passes: the backward one computes the gradients of inputs and of weights."""
_NAMED = pl.concat_str("gpu_models", pl.lit("\n"), "arithmetic")


def with_utilisation(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `mfu` and what it is made of: `flop_per_unit`, `flop_source` (model, program), `arithmetic` (precision of its matrices, which
    for a user's program only that reports), `peak_flop_per_s` of one GPU, and `peak_source`.
    """
    macs = (
        pl.when(pl.col("mode") == "infer")
        .then("model_macs")
        .otherwise(PASSES * pl.col("model_macs") - pl.col("model_first_macs").fill_null(0))
    )
    counted = pl.col("model").is_in(of_tokens()) == (pl.col("unit") == "tokens")  # a program may count samples of a network of tokens
    of_model = pl.when(counted).then(FLOP_PER_MAC * macs)
    told = rows.with_columns(
        pl.coalesce(of_model, "told_flop_per_unit").cast(pl.Float64).alias("flop_per_unit"),
        pl.when(of_model.is_not_null())
        .then(pl.lit("model"))
        .when(pl.col("told_flop_per_unit").is_not_null())
        .then(pl.lit("program"))
        .alias("flop_source"),
        pl.when("own_program").then("told_precision").otherwise("precision").alias("arithmetic"),
    )
    found = _peaks(told)
    flop, source = ({name: getattr(one, field) for name, one in found.items()} for field in ("flop_per_s", "source"))
    known = told.with_columns(
        _NAMED.replace_strict(flop, default=None, return_dtype=pl.Float64()).alias("peak_flop_per_s"),
        _NAMED.replace_strict(source, default=None, return_dtype=pl.String()).alias("peak_source"),
    )
    of_a_gpu = pl.col("flop_per_unit") * pl.col("rate_per_s") / pl.col("num_processes")
    return known.with_columns((of_a_gpu / pl.col("peak_flop_per_s")).alias("mfu")).drop("told_flop_per_unit", "told_precision")


def _peaks(rows: pl.DataFrame) -> dict[str, Peak]:
    """Return the peak of each GPU and precision of `_NAMED`."""
    pairs = rows.select(_NAMED.alias("named"), "gpu_models", "arithmetic").drop_nulls().unique()
    found = {named: peak(model, precision) for named, model, precision in pairs.iter_rows()}
    return {named: one for named, one in found.items() if one is not None}
