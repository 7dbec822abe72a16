"""Models of other libraries with Tercet's weights, one file each. They are imported on use, so none is required."""
