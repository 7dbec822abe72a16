"""The four tasks, all in which training one family differs from another. Everything else in `training` is shared."""
