"""Clusters on loopback: a real YARN, and the HTTP of managers that don't run here, with real drivers behind them."""
