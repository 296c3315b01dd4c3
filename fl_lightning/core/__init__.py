"""A method as tensor algebra: vectors, gradient oracles, terms, algorithms. Imports only `errors` and PyTorch."""
