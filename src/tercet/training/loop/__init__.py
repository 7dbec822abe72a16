"""The training loop: a Lightning module, its trainer, and the actions after each step."""
