"""Real kernels that the demo, the tests and the benchmarks compile; `README.md` beside this file says where from."""
