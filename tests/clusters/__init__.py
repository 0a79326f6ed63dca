"""Cluster managers that don't run here, as far as their HTTP goes: on loopback, with real drivers behind them."""
