"""Cluster managers on loopback: a real YARN, and the HTTP of those that don't run here, with real drivers behind them."""
