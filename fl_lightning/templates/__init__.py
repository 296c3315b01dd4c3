"""Files that `fl-lightning new` copies: each runs as it stands."""
