"""Default seconds after which a process is lost, and for which all wait for each other at the start.

They stand apart from `processes`, so that the help of a command needs no JAX.
"""

HEARTBEAT, CONNECT = 60, 300
