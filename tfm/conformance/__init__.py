"""The conformance suite: pytest proves of every file of a slot what the slot promises.

The cases are collected from the slots' folders: a new variant is tested without anybody writing a test.
`tfm check FILE` runs them on one variant; in a clone `make test` runs them on all.
"""
