"""Other people's model folders: read as they are, and written so that their own programs open them."""
