"""Runs with several processes: launchers, devices, exchange of gradients, and detection of lost ranks."""
