"""Turn records into records.parquet, tables, plots and one page. Everything derived is computed here, from the records; nothing derived is
believed."""
