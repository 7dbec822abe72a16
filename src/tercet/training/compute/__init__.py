"""What steps are computed with on this machine: precision, threads, compilation, and how fast."""
