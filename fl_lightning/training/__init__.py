"""Training of a run: its parts, a session from the folder to the results, and FederatedTrainer."""
