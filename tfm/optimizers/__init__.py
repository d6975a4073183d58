"""The optimizer slot: one file per variant; `protocol.py` has the base class."""
