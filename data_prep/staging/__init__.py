"""From network storage to the node: every chunk hashed on the way, once per node, resumable, whole or not there."""

from data_prep.staging.options import StageOptions
from data_prep.staging.stage import StagedDataset, stage

__all__ = ["StageOptions", "StagedDataset", "stage"]
