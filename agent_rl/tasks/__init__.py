"""Problems: generated families, files in every common shape, benchmarks."""
