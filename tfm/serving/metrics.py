"""What a server counts, for Prometheus."""

import time

from tfm.errors import importing_extra
from tfm.serving.service import Service


with importing_extra('serve'):
  import prometheus_client
  from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
SECONDS = 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300  # bounds of histograms


class Metrics:
  """The counters of one server."""

  def __init__(self, service: Service):
    self._registry = registry = CollectorRegistry()
    self.refused = Counter(
      'tfm_requests_refused', 'Requests that were answered with an error', ['status'], registry=registry
    )
    self._ended = Counter(
      'tfm_requests', 'Requests for texts, by how they ended', ['outcome'], registry=registry
    )
    self._prompt_tokens = Counter('tfm_prompt_tokens', 'Tokens of prompts', registry=registry)
    self._new_tokens = Counter('tfm_generated_tokens', 'New tokens', registry=registry)
    self._seconds = Histogram(
      'tfm_request_seconds', 'From the request to the end of its texts', registry=registry, buckets=SECONDS
    )
    self._first = Histogram(
      'tfm_first_token_seconds', 'From the request to its first token', registry=registry, buckets=SECONDS
    )
    waiting = Gauge('tfm_texts_waiting', 'Texts that wait for a row', registry=registry)
    waiting.set_function(lambda: service.waiting)
    active = Gauge('tfm_texts_active', 'Texts that are computed', registry=registry)
    active.set_function(lambda: service.active)

  def record(
    self, outcome: str, start: float, prompt_tokens: int, new_tokens: int, first_token: float | None
  ) -> None:
    """Counts a request that ended.

    Args:
      outcome: 'finished', 'timeout', 'failed' or 'cancelled'.
      start, first_token: when, by `time.monotonic`; None: there is none, or no stream of tokens.
    """
    self._ended.labels(outcome).inc()
    self._prompt_tokens.inc(prompt_tokens)
    self._new_tokens.inc(new_tokens)
    self._seconds.observe(time.monotonic() - start)
    if first_token is not None:
      self._first.observe(first_token - start)

  def format(self) -> bytes:
    """All of them, as Prometheus reads them."""
    return prometheus_client.generate_latest(self._registry)
