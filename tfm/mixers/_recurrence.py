"""How recurrences with one decay a head are computed: by XLA in chunks, or by kernels in Pallas."""

import dataclasses

import jax
from jax.sharding import PartitionSpec

from tfm import spec
from tfm.errors import require
from tfm.parallel import mesh
from tfm.parallel.sequence_parallelism import sequence_shards
from tfm.parallel.sharded_attention import batch_and_head_axes
from tfm.parallel.sharding import shard_count
from tfm.shapes import Array, Bool, Float
from tfm.spec import Size


@dataclasses.dataclass(frozen=True)
class Pallas:
  """h_t = exp(log_decay_t) h_{t-1} + k_t v_tᵀ, y_t = q_t h_t by kernels of this project, for TPUs and GPUs.

  A kernel walks along a row of one head, chunk by chunk, and keeps the state; another walks back. The rows of
  a head must fit into a TPU's memory for vectors. Products are of the inputs' dtype, sums and states in
  float32. Not measured on a device.

  Attributes:
    block: the tokens of a chunk, a power of two of at least 16.
    interpret: whether to run in interpreter mode on any platform, for tests.

  Raises:
    ValueError: for another block.
  """

  block: Size = 64
  interpret: bool = False

  def __post_init__(self):
    from tfm.layers.pallas import LEAST, is_block_size

    require(is_block_size(self.block), f'block={self.block} must be a power of two, {LEAST} tokens or more')

  def __call__(
    self,
    q: Float[Array, 'B T Q C'],
    k: Float[Array, 'B T K C'],
    v: Float[Array, 'B T V E'],
    log_decay: Float[Array, 'B T H'],
    first: Bool[Array, 'B T'],
    state: Float[Array, 'B H C E'],
    read: Float[Array, 'B T V C'] | None = None,
  ) -> tuple[Float[Array, 'B H C E'], Float[Array, 'B T H E']]:
    """The state after the rows, and the output of each token.

    Args:
      q, k, v: of groups of heads, or of all; log_decay: at most 0.
      first: the tokens before which the state becomes zero.
      read: the values are v_t - read_t h, where h is the state before the token's chunk; None: v_t.

    Raises:
      ValueError: on a CPU, for rows that are sharded along their length, or heads that the mesh does not
        divide.
    """
    from tfm.mixers._pallas_recurrence import scan_row  # Pallas is imported where it is used

    platform = mesh.current_platform()
    require(
      self.interpret or platform in ('tpu', 'gpu'),
      f"recurrence='pallas' runs on tpu and gpu, not on {platform}; use recurrence='chunks'",
    )
    require(
      sequence_shards()[1] == 1,
      "recurrence='pallas' computes whole rows, which mesh.sequence divides; use recurrence='chunks'",
    )

    def scan(*arrays):
      return scan_row(*arrays, self.block, self.interpret)

    arrays = q, k, v, log_decay, first, state, read
    if jax.sharding.get_abstract_mesh().empty:
      return scan(*arrays)
    batch, heads = batch_and_head_axes()
    batch = batch if len(q) % shard_count(batch) == 0 else None

    def of_heads(count):
      parts = shard_count(heads)
      require(
        count == 1 or count % parts == 0,
        f"recurrence='pallas' cannot divide {count} heads into the mesh's {parts} shards; use a divisor",
      )
      return None if count == 1 else heads

    rows = [PartitionSpec(batch, None, of_heads(x.shape[2])) for x in (q, k, v, log_decay)]
    of_state = PartitionSpec(batch, of_heads(state.shape[1]))
    return jax.shard_map(
      scan,
      in_specs=(*rows, PartitionSpec(batch), of_state, rows[2]),
      out_specs=(of_state, rows[-1]),
      check_vma=False,
    )(*arrays)


WITHOUT_KERNELS = {'recurrence': 'chunks'}
RECURRENCES = {'chunks': lambda: None, 'pallas': Pallas}


def build_recurrence(text: str) -> Pallas | None:
  """What computes a recurrence of the name; None: XLA in chunks."""
  return spec.build_from_table(text, RECURRENCES)
