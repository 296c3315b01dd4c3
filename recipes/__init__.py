"""Recipes: programs that train, each run by name with `fl-lightning run`, and presets of papers."""
