"""A method as tensor algebra: vectors, gradient oracles, terms, algorithms."""
