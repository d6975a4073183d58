"""The residual slot: one file per variant; `protocol.py` has the base class."""
