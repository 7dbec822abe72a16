"""Several processes of one run: who they are, what they exchange, and whether they live."""
