"""Loopback addresses for simulated hosts: each pytest process has a network of its own, so two never share a port."""

import os


def loopback_network() -> int:
    """Second byte of 127.N.0.x: 100 to 227, by the worker of pytest-xdist or else by the process."""
    return 100 + os.getpid() % 128
