"""The training loop: Lightning's module and trainer, and what follows a step."""
