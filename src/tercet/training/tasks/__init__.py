"""The training tasks: all code of `training` that differs between model families."""
