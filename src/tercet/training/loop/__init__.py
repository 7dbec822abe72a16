"""The training loop: Lightning's module and trainer, and the actions after each step."""
