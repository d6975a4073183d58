"""pytest's settings of the suite."""

pytest_plugins = ['tfm.conformance.session']  # sets the environment, before anything imports JAX
