"""What there is to know about capeval on a CUDA GPU, part by part; `python -m benchmarks.cuda`."""
