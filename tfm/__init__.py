"""A laboratory for Transformers in JAX and Flax."""
