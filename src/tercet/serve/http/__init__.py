"""The HTTP wing: OpenAI's routes and our own, who may ask, and how answers and errors look to clients."""
