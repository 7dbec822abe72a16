"""Choice and measurement of how steps are computed: precision, threads, compilation and speed."""
