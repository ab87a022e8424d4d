"""What this library promises about speed, memory and precision, measured: run `python -m benchmarks`."""
