"""From a data spec to a corpus: ids on disk, made once and kept in the cache."""
