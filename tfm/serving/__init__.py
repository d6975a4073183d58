"""A trained model over HTTP, in OpenAI's shapes: requests share the rows of one decoding state."""
