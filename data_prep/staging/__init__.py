"""Stage datasets and single files on the nodes: storage is read once, nodes pass chunks on, and every chunk is hashed."""

from data_prep.staging.stage import StagedFiles, StageOptions, stage

__all__ = ["StageOptions", "StagedFiles", "stage"]
