"""Parts of a researcher's package."""
