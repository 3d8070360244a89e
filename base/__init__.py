"""What every room needs; standard library only."""
