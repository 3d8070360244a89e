"""Datasets and single files, from storage to the nodes: read once, passed on between them, every chunk hashed, whole or not there."""

from data_prep.staging.stage import StagedFiles, StageOptions, stage

__all__ = ["StageOptions", "StagedFiles", "stage"]
