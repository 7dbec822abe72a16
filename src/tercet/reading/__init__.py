"""Read untrusted files: only regular files, within the bounds of `tercet.limits`."""
