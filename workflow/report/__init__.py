"""Records -> parquet -> tables, plots, one page. Everything derived is computed here, from the records; nothing derived is believed."""
