"""Datasets and single files, from storage to the nodes: read once, passed on between them, every chunk hashed, whole or not there."""

from data_prep.staging.options import StageOptions
from data_prep.staging.stage import StagedFiles, stage

__all__ = ["StageOptions", "StagedFiles", "stage"]
