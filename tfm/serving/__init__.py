"""A trained model over HTTP, in OpenAI's shapes: requests share the rows of one decoding state."""

MAX_BODY = 4 * 2**20  # bytes of the body of a request, unless --max_body says otherwise
