"""The benchmark against peers: see BENCHMARKS.md, and bench/run."""
