"""What runs the search: plain (any device; defines what is correct), CUDA and CPU."""
